"""Run by the Python of a vLLM environment: a tiny model with random weights, a few tokens, and how it ends.

Usage: engine_vllm.py FOLDER [key=value ...]. It prints one line of JSON with the tokens and the time they took.
"""

import json
import os
import sys
import time
from pathlib import Path

SIZES = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
MODELS = {
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "moe_intermediate_size": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "minimax_m2": {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "intermediate_size": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rotary_dim": 16,
        "scoring_func": "softmax",
        "use_routing_bias": True,
        "use_qk_norm": True,
    },
}


def main() -> None:
    folder = Path(sys.argv[1])
    asked = dict(item.split("=", 1) for item in sys.argv[2:])
    kind = asked.get("model", "qwen3_moe")
    model = folder / kind
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": kind, **SIZES, **MODELS[kind]}))

    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    llm = LLM(
        model=str(model),
        skip_tokenizer_init=True,
        load_format="dummy",
        tensor_parallel_size=int(asked.get("tp", "1")),
        enforce_eager=asked.get("eager", "1") == "1",
        max_model_len=512,
        max_num_batched_tokens=512,
        max_num_seqs=8,
        kv_cache_memory_bytes=256 << 20,
        dtype="bfloat16",
        seed=0,
    )
    count, requests = int(asked.get("tokens", "16")), int(asked.get("requests", "1"))
    prompts = [{"prompt_token_ids": [3 + (7 * i + 13 * j) % 990 for j in range(32)]} for i in range(requests)]
    sampling = SamplingParams(temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False)
    rounds = []
    for _ in range(int(asked.get("rounds", "1"))):
        start = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        rounds.append(time.perf_counter() - start)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    os.write(1, (json.dumps({"tokens": tokens, "seconds": rounds}) + "\n").encode())


if __name__ == "__main__":
    main()
