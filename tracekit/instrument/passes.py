"""What is known of a model pass: the batch that the scheduler made, and how the runner runs it."""

import sys
from collections.abc import Mapping
from typing import Any


def batch_metadata(scheduler_output: Any, runner: Any) -> dict[str, Any]:
    """Return the pass's batch: requests, tokens, and how many requests are in prefill or decode.

    A request is in prefill as long as it has put out no token, as vLLM counts it. Where a version does not tell, the
    keys are left out.
    """
    scheduled: Mapping[str, int] = scheduler_output.num_scheduled_tokens
    metadata: dict[str, Any] = {
        "max_num_scheduled_tokens": max(scheduled.values(), default=0),
        "num_reqs": len(scheduled),
        "num_tokens_unpadded": scheduler_output.total_num_scheduled_tokens,
        "use_spec_decode": getattr(runner, "speculative_config", None) is not None,
    }
    cached: Any = getattr(scheduler_output, "scheduled_cached_reqs", None)
    outputs = getattr(cached, "num_output_tokens", None)
    if outputs is None:
        return metadata
    put_out = dict(zip(cached.req_ids, outputs, strict=False))
    decodes = sum(put_out.get(request, 0) > 0 for request in scheduled)
    return metadata | {
        "decode_req_count": decodes,
        "is_pure_decode": decodes == len(scheduled),
        "prefill_req_count": len(scheduled) - decodes,
    }


def forward_metadata() -> dict[str, Any]:
    """Return how the forward that is about to run is run; empty where vLLM does not say."""
    module = sys.modules.get("vllm.forward_context")
    if module is None or not module.is_forward_context_available():
        return {}
    context = module.get_forward_context()
    mode = getattr(context, "cudagraph_runtime_mode", None)
    batch = getattr(context, "batch_descriptor", None)
    found = {
        "cudagraph_mode": getattr(mode, "name", None),
        "num_tokens_padded": getattr(batch, "num_tokens", None),
        "should_ubatch": getattr(context, "ubatch_slices", None) is not None,
        "skip_compiled": getattr(context, "skip_compiled", None),
    }
    return {key: value for key, value in found.items() if value is not None}
