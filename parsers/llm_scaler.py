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

Not told: rank, layer, step, token, time. The k-th ``up`` of a device is layer ``k mod n`` of step ``k div n`` once the
number ``n`` of layers with experts is known: from the forwards that vLLM printed in the same log, or by
``--moe-layers``; if a device's count is no whole number of passes there are no steps, and that is said. A record is
seven writes to an unbuffered stream, so workers that share one standard error tear each other's records at those
seams: `tracekit.parsers.torn` rebuilds them. Values come back almost
whole; a device or kernel that the text does not settle is null. Measured figures are in ``docs/reading.md``.

The patch ``llm-scaler-moe`` of tracekit prints each record in one write, with more behind it::

    ... wait_ms=<%.6f> v=1 count=<int> pid=<int> t0_ns=<int> ns=<int> submit_ns=<int>[ rank=<R>][ device_ns=<int>]

- ``ns``: the wait in whole nanoseconds, taken in the place of ``wait_ms``. ``t0_ns``: when it began.
- ``count``: ordinal in this process, over all kernels (a process with two of the extensions counts twice from 1).
- ``rank``, or without one ``pid``: names the worker.
"""

import polars as pl

from tracekit.dialect import Dialect, Field, Recovered
from tracekit.parsers.torn import rebuild

_PATCHED = r'" wait_ms=\S+ v=\d+ count=\d'


def recover(lines: pl.DataFrame) -> Recovered | None:
    """Rebuild the torn records of a stream (line, text); none where each record was one write: what is cut is lost."""
    patched = lines.select(pl.col("text").str.contains(_PATCHED).any()).item()
    return None if patched else rebuild(lines)


DIALECT = Dialect(
    name="llm-scaler",
    family="llm-scaler",
    kind="event",
    marker="[llm-scaler][moe-kernel]",
    opening=r"^ device=-?\d",
    cut='" wait_ms=',
    head=r' device=(?P<device>-?\d+) kernel="(?P<name>[^"\[]+)',
    fields=(Field("wait_ms", "dur_ns", "ms"),),
    trailing=(
        Field("ns", "exact_ns", "ns"),
        Field("t0_ns", "start_ns", "ns"),
        Field("count", "call", "count"),
        Field("rank", "rank", "int"),
        Field("pid", "own_pid", "count"),
    ),
    columns={"op": pl.col("name"), "name": pl.col("name"), "device": pl.col("device")},
    expects=(" device=", ' kernel="', '" wait_ms='),
    clock="backlog",
    resolution_ns=1,
    whole_stream=True,
    process="device",
    passes="pairs",
    recover=recover,
    switch="LLM_SCALER_MOE_TRACE_KERNELS=1 (set at all: 0 switches it on too); enforce_eager runs only",
    meaning="wait from after the submission to the kernel's end: queue backlog and kernel",
    sample='[llm-scaler][moe-kernel] device=0 kernel="moe ws up routed cutlass int4" wait_ms=0.04465',
)
