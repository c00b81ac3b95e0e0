"""Results of the engines' own benchmarks, and of all-reduces timed alone, as frames.

llama-bench: ``-o json`` (an array) and ``-o jsonl`` (a record a line): ``n_prompt``, ``n_gen``, ``avg_ts``,
``stddev_ts``, ``samples_ts``, the same in ``_ns``. vLLM: ``bench throughput --output-json`` (``tokens_per_second``
counts prompt and output), ``bench latency --output-json`` (``avg_latency``, ``latencies`` and ``percentiles`` of a
whole batch, in seconds), ``bench serve --save-result`` (``output_throughput``, ``mean_ttft_ms``, ``ttfts``, ...).
Also what they print for people (`tracekit.printed`).

A probe of all-reduces: records of ``label``, ``bytes``, ``avgMs`` (or ``avg_ms``), bare or as ``results`` of an object.
"""

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import TracekitError, UsageError
from tracekit.frame import Column
from tracekit.printed import printed
from tracekit.source import plain_text

#: One row per result; times are of one repetition, request or token, as `what` says.
BENCH_COLUMNS: tuple[Column, ...] = (
    ("source", pl.String(), "llama-bench, vllm-throughput, vllm-latency, vllm-serve"),
    (
        "what",
        pl.String(),
        "decode, prefill, both (prompt, then output), total (prompt and output tokens counted together), batch (a "
        "whole one), ttft, tpot, itl, e2el (a request's first token, each further one, gap between them, all of it)",
    ),
    ("label", pl.String(), "the model, as printed"),
    ("n_prompt", pl.Int64(), "tokens of the prompt"),
    ("n_gen", pl.Int64(), "tokens generated"),
    ("tok_s", pl.Float64(), "tokens per second: the mean, as printed"),
    ("stddev_tok_s", pl.Float64(), "its standard deviation, as printed"),
    ("samples_tok_s", pl.List(pl.Float64()), "each repetition"),
    ("mean_ns", pl.Int64(), "mean time, as printed"),
    ("stddev_ns", pl.Int64(), "its standard deviation, as printed; of vllm-latency, of the samples (n - 1)"),
    ("p50_ns", pl.Int64(), "as printed"),
    ("p99_ns", pl.Int64(), "as printed"),
    ("samples_ns", pl.List(pl.Int64()), "each repetition or request"),
)
#: One row per size of an all-reduce timed alone.
COLLECTIVE_COLUMNS: tuple[Column, ...] = (
    ("label", pl.String(), "as printed"),
    ("bytes", pl.Int64(), "size of the message"),
    ("mean_ns", pl.Int64(), "mean time of one"),
)
BENCH = {name: dtype for name, dtype, _ in BENCH_COLUMNS}
COLLECTIVES = {name: dtype for name, dtype, _ in COLLECTIVE_COLUMNS}

_SECOND, _MS = 1_000_000_000, 1_000_000

Record = Mapping[str, Any]
Row = dict[str, Any]


def read_bench(path: str | Path) -> pl.DataFrame:
    """Return the results in a benchmark's JSON, JSON lines or table for people, a row each (columns `BENCH`).

    Raises:
        UsageError: no such file, or it holds no known benchmark.
        TracekitError: the file was cut off while it was written.

    >>> read_bench("samples/bench_rpc.json").select("what", "tok_s", "mean_ns").row(1)
    ('decode', 27.454699, 582788194)
    """
    try:
        rows = [row for record in _records(path) for row in _rows(record)]
    except ValueError as error:
        raise UsageError(f"{path}: a result holds no number where one belongs ({error})") from error
    if not rows:
        raise UsageError(f"{path}: holds no result of llama-bench or of vllm bench")
    return pl.DataFrame({c: [r.get(c) for r in rows] for c in BENCH}, schema=BENCH)


def read_collectives(path: str | Path) -> pl.DataFrame:
    """Return what a probe of all-reduces told, a row per message (columns `COLLECTIVES`).

    Raises:
        UsageError: no such file, or it holds none.
        TracekitError: the file was cut off while it was written.
    """
    found = [inner for record in _records(path) for inner in _listed(record)]
    try:
        rows = [
            {"label": _text(r, "label"), "bytes": _whole(r, "bytes"), "mean_ns": _ns(r, _average(r), _MS)}
            for r in found
            if "bytes" in r and _average(r) in r
        ]
    except ValueError as error:
        raise UsageError(f"{path}: a result holds no number where one belongs ({error})") from error
    if not rows:
        raise UsageError(f"{path}: holds no all-reduce (records of label, bytes and avgMs)")
    return pl.DataFrame({c: [r[c] for r in rows] for c in COLLECTIVES}, schema=COLLECTIVES)


def decode_tok_s(path: str | Path) -> float:
    """Return the tokens per second of decoding in a benchmark's file.

    Raises:
        UsageError: it holds none, or several that differ.
    """
    found = read_bench(path)
    decode = found.filter((pl.col("what") == "decode") & pl.col("tok_s").is_not_null())
    if decode.height == 1:
        return float(decode["tok_s"][0])
    if decode.height:
        sizes = ", ".join(f"n_gen={n}" for n in decode["n_gen"])
        raise UsageError(f"{path}: holds {decode.height} decode results ({sizes}); give the one meant with --tok-s")
    what = ", ".join(found["what"].unique().sort())
    raise UsageError(f"{path}: tells no decode throughput (it holds: {what}); give it with --tok-s")


def _records(path: str | Path) -> list[Record]:
    text = plain_text(path)
    if told := list(printed(text)):
        return told
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


def _rows(record: Record) -> Iterator[Row]:
    """Yield the rows of one record; none if it is of no known benchmark."""
    if "avg_ts" in record and "n_gen" in record:
        yield _llama_bench(record)
    elif "output_throughput" in record:
        yield from _vllm_serve(record)
    elif "tokens_per_second" in record:
        tok_s = _number(record, "tokens_per_second")
        elapsed = _ns(record, "elapsed_time", _SECOND)
        yield {"source": "vllm-throughput", "what": "total", "tok_s": tok_s, "mean_ns": elapsed}
    elif "avg_latency" in record:
        yield _vllm_latency(record)


def _llama_bench(record: Record) -> Row:
    prompt, gen = _whole(record, "n_prompt") or 0, _whole(record, "n_gen")
    return {
        "source": "llama-bench",
        "what": "both" if prompt and gen else "decode" if gen else "prefill",
        "label": _text(record, "model_filename"),
        "n_prompt": prompt,
        "n_gen": gen,
        "tok_s": _number(record, "avg_ts"),
        "stddev_tok_s": _number(record, "stddev_ts"),
        "samples_tok_s": _numbers(record, "samples_ts"),
        "mean_ns": _ns(record, "avg_ns"),
        "stddev_ns": _ns(record, "stddev_ns"),
        "samples_ns": _samples_ns(record, "samples_ns", 1),
    }


def _vllm_latency(record: Record) -> Row:
    samples = _samples_ns(record, "latencies", _SECOND)
    percentiles = record.get("percentiles")
    known = percentiles if isinstance(percentiles, dict) else {}
    return {
        "source": "vllm-latency",
        "what": "batch",
        "mean_ns": _ns(record, "avg_latency", _SECOND),
        "stddev_ns": round(statistics.stdev(samples)) if samples and len(samples) > 1 else None,
        "p50_ns": _ns(known, "50", _SECOND),
        "p99_ns": _ns(known, "99", _SECOND),
        "samples_ns": samples,
    }


def _vllm_serve(record: Record) -> Iterator[Row]:
    shared = {"source": "vllm-serve", "label": _text(record, "model_id")}
    yield {**shared, "what": "decode", "tok_s": _number(record, "output_throughput")}
    if "total_token_throughput" in record:
        yield {**shared, "what": "total", "tok_s": _number(record, "total_token_throughput")}
    for what in ("ttft", "tpot", "itl", "e2el"):
        if f"mean_{what}_ms" in record:
            yield {
                **shared,
                "what": what,
                "mean_ns": _ns(record, f"mean_{what}_ms", _MS),
                "stddev_ns": _ns(record, f"std_{what}_ms", _MS),
                "p50_ns": _ns(record, f"median_{what}_ms", _MS),
                "p99_ns": _ns(record, f"p99_{what}_ms", _MS),
                "samples_ns": _samples_ns(record, "ttfts", _SECOND) if what == "ttft" else None,
            }


def _listed(record: Record) -> list[Record]:
    """Return the records under ``results``, or the record itself."""
    inner = record.get("results", [record])
    return [r for r in inner if isinstance(r, dict)] if isinstance(inner, list) else []


def _average(record: Record) -> str:
    return "avgMs" if "avgMs" in record else "avg_ms"


def _text(record: Record, key: str) -> str | None:
    value = record.get(key)
    return None if value is None else str(value)


def _number(record: Record, key: str) -> float | None:
    """Return a finite number, None where the record has none; ValueError for anything else."""
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1e18:
        raise ValueError(f"{key} is {str(value)[:40]!r}")
    return float(value)


def _whole(record: Record, key: str) -> int | None:
    number = _number(record, key)
    return None if number is None else int(number)


def _ns(record: Record, key: str, unit: int = 1) -> int | None:
    number = _number(record, key)
    if number is not None and number * unit > 9e18:
        raise ValueError(f"{key} is {number}")
    return None if number is None else round(number * unit)


def _numbers(record: Record, key: str) -> list[float] | None:
    values = record.get(key)
    if values is None:
        return None
    if not isinstance(values, list):
        raise ValueError(f"{key} is {str(values)[:40]!r}")  # noqa: TRY004 (about the file, not about our caller)
    return [n for value in values if (n := _number({key: value}, key)) is not None]


def _samples_ns(record: Record, key: str, unit: int) -> list[int] | None:
    values = _numbers(record, key)
    return None if values is None else [n for v in values if (n := _ns({key: v}, key, unit)) is not None]
