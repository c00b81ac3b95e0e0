"""The frames that everything speaks: their schemas as data, and how a frame is built and checked.

Durations are integer nanoseconds; the unit is in the column's name. A column that ends in "not known" holds
null: nothing is invented. Text that repeats is Categorical, so that frames of several logs concatenate.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.errors import UsageError

#: One row per timed occurrence, in printed order within a stream.
EVENTS: dict[str, pl.DataType] = {
    "dialect": pl.Categorical(),  # who printed it: ggml-sycl, llm-scaler, vllm-xpu
    "stream": pl.Categorical(),  # the log, by its path
    "line": pl.UInt32(),  # physical line in it, from 1
    "seq": pl.UInt64(),  # order within the stream (records that are glued share a line)
    "run": pl.UInt16(),  # several runs appended to one log are told apart
    "worker": pl.Categorical(),  # display name of the process
    "rank": pl.Int32(),  # as printed in the record; null where it is not a number
    "pid": pl.Int32(),  # from the line's prefix or the record
    "device": pl.Int16(),  # as printed
    "op": pl.Categorical(),  # operation, kernel or region, normalised
    "name": pl.Categorical(),  # the full name as printed
    "category": pl.Categorical(),  # see tracekit/rules/categories.toml
    "layer": pl.Int16(),
    "layer_inferred": pl.Boolean(),  # filled in from the neighbours of one pass, not printed
    "shape": pl.Categorical(),  # as printed
    "tokens": pl.Int32(),  # rows in the batch
    "phase": pl.Categorical(),  # prefill, decode, mixed
    "step": pl.Int32(),  # index of the model pass within worker and run
    "call": pl.UInt32(),  # ordinal as printed (count=)
    "kind": pl.Categorical(),  # event, or sample (one printed of every N: never summed)
    "clock": pl.Categorical(),  # host-wait, host-enqueue, host-sync-unknown, backlog, device
    "start_ns": pl.Int64(),  # printed by the instrument
    "arrival_ns": pl.Int64(),  # stamped by `tracekit run`
    "dur_ns": pl.Int64(),  # as printed
    "self_ns": pl.Int64(),  # without the regions nested inside
    "depth": pl.UInt8(),  # nesting: 0 is outermost; children stand before their parent
    "recovered": pl.Boolean(),  # rebuilt from torn text
}

#: Rows that were printed as aggregates; of cumulative snapshots only the last per process.
SUMMARIES: dict[str, pl.DataType] = {
    **{c: EVENTS[c] for c in ("dialect", "stream", "line", "seq", "run", "worker", "rank", "pid", "device")},
    **{c: EVENTS[c] for c in ("op", "name", "category", "layer", "shape", "tokens", "phase", "step", "clock")},
    "calls": pl.UInt64(),
    "total_ns": pl.Int64(),
    "mean_ns": pl.Int64(),
    "min_ns": pl.Int64(),
    "max_ns": pl.Int64(),
}

#: Records that opened with a marker and could not be read.
REJECTS: dict[str, pl.DataType] = {
    "stream": pl.Categorical(),
    "line": pl.UInt32(),
    "dialect": pl.Categorical(),
    "reason": pl.Categorical(),
    "text": pl.String(),  # at most 80 characters
}

#: What was read and what was not, per stream and dialect.
COVERAGE: dict[str, pl.DataType] = {
    "stream": pl.Categorical(),
    "dialect": pl.Categorical(),
    "lines": pl.UInt64(),  # physical lines of the stream
    "records": pl.UInt64(),  # read whole
    "recovered": pl.UInt64(),
    "rejected": pl.UInt64(),
    "quoted": pl.UInt64(),  # markers in prose or in quoted source
    "frame_lines": pl.UInt64(),  # markers that only open or close a block
}

#: Faults (something is lost or disagrees) and notes, each with how often.
FINDINGS: dict[str, pl.DataType] = {
    "severity": pl.Categorical(),  # fault, note
    "code": pl.String(),  # stable name of the finding
    "stream": pl.Categorical(),
    "dialect": pl.Categorical(),
    "line": pl.UInt32(),  # the first place, where there is one
    "count": pl.UInt64(),
    "message": pl.String(),
}


def empty(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return a frame with the schema's columns and no rows."""
    return pl.DataFrame(schema=schema)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one dialect and stream, packed: what repeats is kept once.

    Attributes:
        rows: ``head`` (index into `heads`) and the columns that differ from row to row.
        heads: the columns that a head decides.
        constants: the columns that are the same for all rows.
    """

    rows: pl.DataFrame
    heads: pl.DataFrame
    constants: Mapping[str, str | int | bool]

    def frame(self, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Unpack to a frame of the schema; what is nowhere is null. A projection costs what it asks for."""
        return pl.DataFrame([self.column(name, dtype) for name, dtype in schema.items()])

    def column(self, name: str, dtype: pl.DataType) -> pl.Series:
        """Return one column, a value per row."""
        if name in self.rows.columns:
            return self.rows[name].cast(dtype)
        if name in self.heads.columns:
            return self.heads[name].gather(self.rows["head"])
        value = self.constants.get(name)
        return pl.repeat(value, self.rows.height, dtype=dtype, eager=True).alias(name)


def conform(frame: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return `frame` with exactly the schema's columns, in order; columns that it lacks are null.

    Raises:
        UsageError: a column cannot hold its values in the declared type.
    """
    columns = [pl.col(c).cast(t) if c in frame.columns else pl.lit(None, dtype=t).alias(c) for c, t in schema.items()]
    try:
        return frame.select(columns)
    except pl.exceptions.InvalidOperationError as error:
        raise UsageError(f"a column does not fit the frame's schema: {error}") from error
