"""Results of the engines' own benchmarks: llama-bench and vLLM, as rows of throughput.

llama-bench: ``-o json`` (an array) and ``-o jsonl`` (a record a line): ``n_prompt``, ``n_gen``, ``avg_ts``,
``stddev_ts``, ``samples_ts``. vLLM: ``bench throughput --output-json`` (``tokens_per_second`` counts prompt and
output), ``bench latency`` (``avg_latency`` of a whole batch, in seconds), ``bench serve`` (``output_throughput``).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import TracekitError, UsageError

BENCH: dict[str, pl.DataType] = {
    "source": pl.String(),  # llama-bench, vllm-throughput, vllm-serve
    "what": pl.String(),  # decode, prefill, both, total (prompt and output tokens together)
    "n_prompt": pl.Int64(),
    "n_gen": pl.Int64(),
    "tok_s": pl.Float64(),
    "stddev_tok_s": pl.Float64(),
    "samples_tok_s": pl.List(pl.Float64()),
}


def read_bench(path: str | Path) -> pl.DataFrame:
    """Return the results in a benchmark's JSON or JSON lines, a row each (columns `BENCH`).

    Raises:
        UsageError: no such file, or it holds no known benchmark.
        TracekitError: the file was cut off while it was written.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    rows = [row for record in _records(path, text) if (row := _row(record)) is not None]
    if not rows:
        raise UsageError(f"{path}: holds no result of llama-bench -o json|jsonl or of vllm bench")
    try:
        return pl.DataFrame({c: [r.get(c) for r in rows] for c in BENCH}, schema=BENCH)
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise UsageError(f"{path}: a result holds no number where one belongs ({error})") from error


def decode_tok_s(path: str | Path) -> float:
    """Return the tokens per second of decoding in a benchmark's file.

    Raises:
        UsageError: it holds none, or several that differ.
    """
    found = read_bench(path)
    decode = found.filter(pl.col("what") == "decode")
    if decode.height == 1:
        return float(decode["tok_s"][0])
    if decode.height:
        sizes = ", ".join(f"n_gen={n}" for n in decode["n_gen"])
        raise UsageError(f"{path}: holds {decode.height} decode results ({sizes}); give the one meant with --tok-s")
    what = ", ".join(found["what"].unique().sort())
    raise UsageError(f"{path}: tells no decode throughput (it holds: {what}); give it with --tok-s")


def _records(path: str | Path, text: str) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise TracekitError(
                f"{path}: is no whole JSON (line {error.lineno}: {error.msg}); was the run cut off?"
            ) from error
    records = found if isinstance(found, list) else [found]
    return [r for r in records if isinstance(r, dict)]


def _row(record: Mapping[str, Any]) -> dict[str, Any] | None:
    if "avg_ts" in record and "n_gen" in record:
        prompt, gen = record.get("n_prompt", 0), record["n_gen"]
        what = "both" if prompt and gen else "decode" if gen else "prefill"
        return {
            "source": "llama-bench",
            "what": what,
            "n_prompt": prompt,
            "n_gen": gen,
            "tok_s": record["avg_ts"],
            "stddev_tok_s": record.get("stddev_ts"),
            "samples_tok_s": record.get("samples_ts"),
        }
    if "output_throughput" in record:
        return {"source": "vllm-serve", "what": "decode", "tok_s": record["output_throughput"]}
    if "tokens_per_second" in record:
        return {"source": "vllm-throughput", "what": "total", "tok_s": record["tokens_per_second"]}
    return None
