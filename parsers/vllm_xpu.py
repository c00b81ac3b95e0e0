"""``[vllm-xpu-timing]`` and ``[vllm-xpu-timing-summary]``: timed regions of vLLM on XPU.

Grammar::

    [vllm-xpu-timing] rank=<R> label=<L> count=<int> last_ms=<%.6f>
    [vllm-xpu-timing-summary] begin
    [vllm-xpu-timing-summary] rank=<R> label=<L> count=<int> total_ms=<%.6f> avg_ms=<%.6f> max_ms=<%.6f>
    [vllm-xpu-timing-summary] end

- ``rank``: LOCAL_RANK, RANK, ... or ``pid<pid>`` where none is set (the engine core and the main process always).
- ``label``: free text with spaces, parentheses, colons: ``all_reduce:(1, 3072):torch.float16``,
  ``all_reduce:row_parallel:model.layers.17.self_attn.o_proj:(1, 3072):torch.float16``,
  ``llm_scaler_moe_u4:M1`` (tokens). Anchored at the right.
- ``count``: calls seen of this rank and label (after SKIP_FIRST, where that is set). One line each with
  PRINT_EVERY=1; every Nth call with PRINT_EVERY=N: a sample, never to be summed.
- ``last_ms``: this call alone.

Regions nest, and a region prints after the regions inside it: see `tracekit/rules/regions.toml`.

Clock: ``perf_counter_ns`` on the host. Without VLLM_XPU_DECODE_TIMING_SYNC=1 that is the time to enqueue, not the
kernels' time; with it, the time until the device is done. The log does not tell which.
Switched on by ``VLLM_XPU_DECODE_TIMING=1`` (exactly). Inside compiled graphs nothing prints: no lines is not fast.
Printed by patched builds of vLLM, and by tracekit's plugin, whose rank is the worker's among all workers
(docs/instrumentation-vllm.md).

Not told: time of day, step, token (but for shapes in labels), synchronisation. Summaries are printed at exit by each
process: blocks of several ranks interleave and a killed process prints none.
"""

import polars as pl

from tracekit.dialect import Dialect, Field

_SIX = r"\d+\.\d{6}"
_LABEL = pl.col("label")
_SHAPE = _LABEL.str.extract(r"^all_reduce:(?:.*:)?(\([\d, ]*\)):[^:]*$", 1)

_COLUMNS = {
    # The site of an all-reduce stays in the operation, its layer number, shape and dtype do not.
    "op": pl.when(_LABEL.str.starts_with("all_reduce:"))
    .then(_LABEL.str.replace(r"^(all_reduce.*?):\([\d, ]*\):[^:]*$", "$1"))
    .otherwise(_LABEL.str.replace(r":M\d+$", ""))
    .str.replace(r"\blayers\.\d+\.", "layers.*."),
    "name": _LABEL,
    "rank": pl.col("rank"),
    "shape": _SHAPE,
    "tokens": pl.coalesce(
        _LABEL.str.extract(r":M(\d+)$", 1),
        _SHAPE.str.extract(r"^\((\d+), \d+\)$", 1),
    ),
}


EVENTS = Dialect(
    name="vllm-xpu",
    family="vllm-xpu",
    kind="event",
    marker="[vllm-xpu-timing]",
    opening=r"^ rank=[^\s{%<]",
    cut=" count=",
    head=r" rank=(?P<rank>\S+) label=(?P<label>.*)",
    fields=(Field("count", "call", "count"), Field("last_ms", "dur_ns", "ms", _SIX)),
    columns=_COLUMNS,
    expects=(" rank=", " label=", " count=", " last_ms="),
    clock="host-sync-unknown",
    whole_stream=True,
    process="process",
    passes="regions",
    switch="VLLM_XPU_DECODE_TIMING=1, with VLLM_XPU_DECODE_TIMING_PRINT_EVERY=1 for every call",
    meaning="host time of one call of a region; nested regions print before the one that holds them",
    sample="[vllm-xpu-timing] rank=0 label=all_reduce:(48, 2048):torch.bfloat16 count=200 last_ms=0.106150",
)

SUMMARY = Dialect(
    name="vllm-xpu-summary",
    family="vllm-xpu",
    kind="summary",
    marker="[vllm-xpu-timing-summary]",
    opening=r"^ (?:rank=[^\s{%<]|begin|end)",
    cut=" count=",
    head=r" rank=(?P<rank>\S+) label=(?P<label>.*)",
    fields=(
        Field("count", "calls", "count"),
        Field("total_ms", "total_ns", "ms", _SIX),
        Field("avg_ms", "mean_ns", "ms", _SIX),
        Field("max_ms", "max_ns", "ms", _SIX),
    ),
    columns=_COLUMNS,
    expects=(" rank=", " label=", " count=", " total_ms=", " avg_ms=", " max_ms="),
    structure=r"^ (?:begin|end)\b",
    clock="host-sync-unknown",
    whole_stream=True,
    process="process",
    switch="VLLM_XPU_DECODE_TIMING_SUMMARY (on unless 0): printed when a process ends in order",
    meaning="calls, total, mean and maximum of a region over a process's life",
    sample="[vllm-xpu-timing-summary] rank=0 label=qwen3_moe.attn.rope count=64 total_ms=1.775560 "
    "avg_ms=0.027743 max_ms=0.272712",
)
