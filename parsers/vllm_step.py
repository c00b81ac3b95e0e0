"""``[vllm-xpu-timing-step]`` and ``[vllm-xpu-engine-step]``: one model pass, or one step of the engine, as JSON.

Grammar: the marker, a space, and one compact JSON object::

    [vllm-xpu-timing-step] {"metadata": {...}, "rank": "<R>", "status": "ok", "step": <int>, "summary_by_total_ms":
        [{"avg_ms": <ms>, "count": <int>, "label": "<L>", "max_ms": <ms>, "rank": "<R>", "total_ms": <ms>}, ...]}
    [vllm-xpu-engine-step] {"label": "<L>", "status": "ok", "step": <int>, "total_ms": <ms>,
        "accounted_region_ms": <ms>, "unaccounted_ms": <ms>, "metadata": {...},
        "regions": [{"label": "<L>", "elapsed_ms": <ms>, "start_offset_ms": <ms>}, ...]}

- ``step`` counts all passes since the process started, warm-up and prefill included, from 1; printed are those after
  STEP_SKIP_FIRST, every STEP_EVERY.
- ``summary_by_total_ms``: the regions of this pass, nested like those of `vllm_xpu`: their sum exceeds the pass.
  Totals and maxima are whole nanoseconds.
- ``metadata``: num_reqs, num_tokens_unpadded, max_num_scheduled_tokens, use_spec_decode, ...; later versions add
  is_pure_decode, decode_req_count, prefill_req_count. Unknown keys are kept.

Clock: host, as in `vllm_xpu`. Switched on by ``VLLM_XPU_DECODE_TIMING_STEP_SUMMARY=1``.
Not told: time of day; regions after the end of a step belong to none. Long lines may be torn between processes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.dialect import Dialect, Field, Unpacked
from tracekit.parsers import vllm_xpu

_STEP_MARKER = "[vllm-xpu-timing-step]"
_ENGINE_MARKER = "[vllm-xpu-engine-step]"

_ROWS = {
    "line": pl.UInt32,
    "sub": pl.UInt16,
    "pid": pl.Int32,
    "text": pl.String,
    "step": pl.Int32,
    "calls": pl.Int64,
    "total_ns": pl.Int64,
    "mean_ns": pl.Int64,
    "max_ns": pl.Int64,
}
_STEPS = {
    "line": pl.UInt32,
    "process": pl.String,
    "step": pl.Int32,
    "phase": pl.String,
    "tokens": pl.Int32,
    "dur_ns": pl.Int64,
    "unaccounted_ns": pl.Int64,
    "status": pl.String,
    "metadata": pl.String,
}


def _ns(ms: float) -> int:
    return round(ms * 1e6)


def batch(metadata: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return phase and tokens of a pass from its metadata; None where they do not tell."""
    tokens = metadata.get("num_tokens_unpadded", metadata.get("total_num_scheduled_tokens"))
    requests = metadata.get("num_reqs")
    decodes, prefills = metadata.get("decode_req_count"), metadata.get("prefill_req_count")
    if metadata.get("is_pure_decode") or (prefills == 0 and decodes):
        return "decode", tokens
    if decodes is not None and prefills:
        return ("mixed" if decodes else "prefill"), tokens
    if tokens is None or not requests or metadata.get("use_spec_decode"):
        return None, tokens  # several tokens a request may be speculation or a prompt
    if tokens == requests:
        return "decode", tokens
    return ("prefill" if requests == 1 else "mixed"), tokens


def _timing_step(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    process = str(body["rank"])
    metadata = body.get("metadata") or {}
    phase, tokens = batch(metadata)
    rows = [
        {
            "text": f"{_STEP_MARKER} rank={row.get('rank', process)} label={row['label']}",
            "calls": row["count"],
            "total_ns": _ns(row["total_ms"]),
            "mean_ns": _ns(row["avg_ms"]),
            "max_ns": _ns(row["max_ms"]),
        }
        for row in body["summary_by_total_ms"]
    ]
    step = {"process": process, "phase": phase, "tokens": tokens, "metadata": json.dumps(metadata, sort_keys=True)}
    return step, rows


def _engine_step(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    metadata = body.get("metadata") or {}
    phase, tokens = batch(metadata)
    rows = [
        {
            "text": f"{_ENGINE_MARKER} rank=engine label={row['label']}",
            "calls": 1,
            **dict.fromkeys(("total_ns", "mean_ns", "max_ns"), _ns(row["elapsed_ms"])),
        }
        for row in body["regions"]
    ]
    step = {
        "process": "engine",
        "phase": phase,
        "tokens": tokens,
        "dur_ns": _ns(body["total_ms"]),
        "unaccounted_ns": _ns(body["unaccounted_ms"]),
        "metadata": json.dumps(metadata, sort_keys=True),
    }
    return step, rows


def unpack(records: pl.DataFrame) -> Unpacked:
    """Unpack records (line, sub, pid, text) of either marker; what is no JSON of the known form is not read."""
    rows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    read = []
    for line, sub, pid, text in records.select("line", "sub", "pid", "text").iter_rows():
        marker, _, body = text.partition("] ")
        try:
            found = json.loads(body)
            step, regions = (_timing_step if f"{marker}]" == _STEP_MARKER else _engine_step)(found)
            number, status = int(found["step"]), str(found["status"])
        except (ValueError, KeyError, TypeError, AttributeError):
            read.append(False)
            continue
        read.append(True)
        steps.append({"line": line, "step": number, "status": status, **step})
        rows += [{"line": line, "sub": sub, "pid": pid, "step": number, **region} for region in regions]
    return Unpacked(_frame(rows, _ROWS), _frame(steps, _STEPS), pl.Series(read, dtype=pl.Boolean))


def _frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Build by columns: building by rows would cast in silence."""
    return pl.DataFrame({c: [row.get(c) for row in rows] for c in schema}, schema=schema)


STEP = Dialect(
    name="vllm-xpu-step",
    family="vllm-xpu",
    kind="step",
    marker=_STEP_MARKER,
    opening=r'^ \{"',
    cut="\n",
    head=vllm_xpu.EVENTS.head,
    fields=(Field("count", "calls", "count"),),
    columns=vllm_xpu.EVENTS.columns,
    expects=(" {",),
    clock="host-sync-unknown",
    whole_stream=True,
    process="process",
    unpack=unpack,
    switch="VLLM_XPU_DECODE_TIMING_STEP_SUMMARY=1",
    meaning="one model pass: its regions summed, its batch",
    sample=_STEP_MARKER + ' {"metadata":{"num_reqs":1,"num_tokens_unpadded":1},"rank":"0","status":"ok","step":81,'
    '"summary_by_total_ms":[{"avg_ms":12.134711,"count":1,"label":"gpu_model_runner.model_forward",'
    '"max_ms":12.134711,"rank":"0","total_ms":12.134711}]}',
)

ENGINE = Dialect(
    name="vllm-xpu-engine-step",
    family="vllm-xpu-engine",
    kind="step",
    marker=_ENGINE_MARKER,
    opening=r'^ \{"',
    cut="\n",
    head=vllm_xpu.EVENTS.head,
    fields=(Field("count", "calls", "count"),),
    columns=vllm_xpu.EVENTS.columns,
    expects=(" {",),
    clock="host-sync-unknown",
    whole_stream=True,
    process="process",
    unpack=unpack,
    switch="the engine-step instrument of vLLM on XPU",
    meaning="one step of the engine: its regions, accounted and unaccounted time",
    sample=_ENGINE_MARKER + ' {"accounted_region_ms":1.5,"label":"step","metadata":{"num_reqs":1},"regions":'
    '[{"elapsed_ms":1.5,"label":"schedule","start_offset_ms":0.0}],"status":"ok","step":1,"total_ms":2.0,'
    '"unaccounted_ms":0.5}',
)
