"""``[llm-scaler][moe-kernel]``: one line per MoE kernel of llm-scaler's INT4 path.

Grammar::

    [llm-scaler][moe-kernel] device=<int> kernel="<text>" wait_ms=<number>

- ``device``: torch device index: 0 everywhere when each worker sees one device, else the local rank; -1 possible.
- ``kernel``: lower-case words and digits, no quotes inside: ``moe ws up routed cutlass int4``.
- ``wait_ms``: milliseconds with six significant digits, without trailing zeros, scientific notation possible
  (``9.1e-05``).

Clock: starts *after* the submission returned and ends when the kernel's event is complete: what was left of the
queue's backlog plus the kernel, minus the submission. Not the kernel's own duration. Every kernel is waited for:
diagnostic, not throughput.
Switched on by ``LLM_SCALER_MOE_TRACE_KERNELS`` being set at all: ``0`` and the empty value switch it on too.
Only runs with ``enforce_eager`` are valid.

Not told: rank, layer, token, time. A record is seven writes to an unbuffered stream, so workers that share one
standard error tear each other's records at those seams: `tracekit.parsers.torn` rebuilds them.
"""

import polars as pl

from tracekit.dialect import Dialect, Field
from tracekit.parsers.torn import rebuild

DIALECT = Dialect(
    name="llm-scaler",
    family="llm-scaler",
    kind="event",
    marker="[llm-scaler][moe-kernel]",
    opening=r"^ device=-?\d",
    cut='" wait_ms=',
    head=r' device=(?P<device>-?\d+) kernel="(?P<name>[^"\[]+)',
    fields=(Field("wait_ms", "dur_ns", "ms"),),
    columns={"op": pl.col("name"), "name": pl.col("name"), "device": pl.col("device")},
    expects=(" device=", ' kernel="', '" wait_ms='),
    clock="backlog",
    resolution_ns=1,
    whole_stream=True,
    process="device",
    recover=rebuild,
    switch="LLM_SCALER_MOE_TRACE_KERNELS=1 (set at all: 0 switches it on too); enforce_eager runs only",
    meaning="wait from after the submission to the kernel's end: queue backlog and kernel",
    sample='[llm-scaler][moe-kernel] device=0 kernel="moe ws up routed cutlass int4" wait_ms=0.04465',
)
