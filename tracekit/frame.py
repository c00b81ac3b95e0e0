"""The frames that everything speaks: their schemas as data, and how a frame is built and checked.

Durations are integer nanoseconds; the unit is in the column's name. A column that ends in "not known" holds
null: nothing is invented. Text that repeats is Categorical, so that frames of several logs concatenate.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.errors import UsageError

#: A column: its name, its type, what it holds.
Column = tuple[str, pl.DataType, str]

#: One row per timed occurrence, in printed order within a stream.
EVENT_COLUMNS: tuple[Column, ...] = (
    ("dialect", pl.Categorical(), "who printed it: ggml-sycl, llm-scaler, vllm-xpu"),
    ("stream", pl.Categorical(), "the log, by its path"),
    ("line", pl.UInt32(), "physical line in it, from 1"),
    ("seq", pl.UInt64(), "order within the stream (records that are glued share a line)"),
    ("run", pl.UInt16(), "several runs appended to one log are told apart"),
    ("worker", pl.Categorical(), "display name of the process"),
    ("rank", pl.Int32(), "as printed in the record; null where it is not a number"),
    ("pid", pl.Int32(), "from the line's prefix or the record"),
    ("device", pl.Int16(), "as printed"),
    ("op", pl.Categorical(), "operation, kernel or region, normalised"),
    ("name", pl.Categorical(), "the full name as printed"),
    ("category", pl.Categorical(), "see tracekit/rules/categories.toml"),
    ("layer", pl.Int16(), "from the name, by tracekit/rules/layers.toml"),
    ("layer_inferred", pl.Boolean(), "filled in from the neighbours of one pass, not printed"),
    ("shape", pl.Categorical(), "as printed"),
    ("tokens", pl.Int32(), "rows in the batch"),
    ("phase", pl.Categorical(), "prefill, decode, mixed"),
    ("step", pl.Int32(), "index of the model pass within worker and run"),
    ("call", pl.UInt32(), "ordinal as printed (count=)"),
    ("kind", pl.Categorical(), "event, or sample (one printed of every N: never summed)"),
    ("clock", pl.Categorical(), "host-wait, host-enqueue, host-sync-unknown, backlog, device"),
    ("start_ns", pl.Int64(), "printed by the instrument"),
    ("arrival_ns", pl.Int64(), "stamped by `tracekit run`"),
    ("dur_ns", pl.Int64(), "as printed"),
    ("self_ns", pl.Int64(), "without the regions nested inside"),
    ("depth", pl.UInt8(), "nesting: 0 is outermost; children stand before their parent"),
    ("recovered", pl.Boolean(), "rebuilt from torn text"),
)

_SUMMARY_SHARED = (
    "dialect", "stream", "line", "seq", "run", "worker", "rank", "pid", "device",
    "op", "name", "category", "layer", "shape", "tokens", "phase", "step", "clock",
)  # fmt: skip

#: Rows that were printed as aggregates; of cumulative snapshots only the last per process.
SUMMARY_COLUMNS: tuple[Column, ...] = (
    *(c for c in EVENT_COLUMNS if c[0] in _SUMMARY_SHARED),
    ("calls", pl.UInt64(), "calls that the row sums"),
    ("total_ns", pl.Int64(), "as printed"),
    ("mean_ns", pl.Int64(), "as printed"),
    ("min_ns", pl.Int64(), "as printed"),
    ("max_ns", pl.Int64(), "as printed"),
)

#: One row per model pass (or engine step).
STEP_COLUMNS: tuple[Column, ...] = (
    *(c for c in EVENT_COLUMNS if c[0] in ("dialect", "stream", "line", "run", "worker", "rank")),
    ("step", pl.Int32(), "index of the pass within worker and run, or the number that was printed"),
    ("phase", pl.Categorical(), "prefill, decode, mixed"),
    ("tokens", pl.Int32(), "rows in the batch"),
    ("dur_ns", pl.Int64(), "time of the pass: of its outermost regions or operations, waits left out"),
    ("unaccounted_ns", pl.Int64(), "time of the step that no region holds, where it was printed"),
    (
        "categories",
        pl.List(pl.Struct({"category": pl.String(), "self_ns": pl.Int64()})),
        "self time by category, null where a summary does not tell",
    ),
    ("status", pl.String(), "as printed"),
    ("metadata", pl.String(), "as printed: JSON"),
)

#: Records that opened with a marker and could not be read.
REJECT_COLUMNS: tuple[Column, ...] = (
    ("stream", pl.Categorical(), "the log, by its path"),
    ("line", pl.UInt32(), "physical line, from 1"),
    ("dialect", pl.Categorical(), "who printed it: ggml-sycl, llm-scaler, vllm-xpu"),
    ("reason", pl.Categorical(), "what the record lacks"),
    ("text", pl.String(), "at most 80 characters"),
)

#: What was read and what was not, per stream and dialect.
COVERAGE_COLUMNS: tuple[Column, ...] = (
    ("stream", pl.Categorical(), "the log, by its path"),
    ("dialect", pl.Categorical(), "who printed it: ggml-sycl, llm-scaler, vllm-xpu"),
    ("lines", pl.UInt64(), "physical lines of the stream"),
    ("records", pl.UInt64(), "read whole"),
    ("recovered", pl.UInt64(), "rebuilt from torn text"),
    ("rejected", pl.UInt64(), "have the marker and not the grammar"),
    ("quoted", pl.UInt64(), "markers in prose or in quoted source"),
    ("frame_lines", pl.UInt64(), "markers that only open or close a block"),
)

#: Faults (something is lost or disagrees) and notes.
FINDING_COLUMNS: tuple[Column, ...] = (
    ("severity", pl.Categorical(), "fault, note"),
    ("code", pl.String(), "stable name of the finding"),
    ("stream", pl.Categorical(), "the log, by its path"),
    ("dialect", pl.Categorical(), "who printed it: ggml-sycl, llm-scaler, vllm-xpu"),
    ("line", pl.UInt32(), "the first place, where there is one"),
    ("count", pl.UInt64(), "how often"),
    ("message", pl.String(), "for people: what, and what it means"),
)


def _schema(columns: tuple[Column, ...]) -> dict[str, pl.DataType]:
    return {name: dtype for name, dtype, _ in columns}


EVENTS = _schema(EVENT_COLUMNS)
SUMMARIES = _schema(SUMMARY_COLUMNS)
STEPS = _schema(STEP_COLUMNS)
REJECTS = _schema(REJECT_COLUMNS)
COVERAGE = _schema(COVERAGE_COLUMNS)
FINDINGS = _schema(FINDING_COLUMNS)


def empty(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return a frame with the schema's columns and no rows."""
    return pl.DataFrame(schema=schema)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one dialect and stream, packed: what repeats is kept once.

    Attributes:
        rows: ``head`` (index into `heads`) and the columns that differ from row to row; without ``self_ns`` nothing
            nests, and it is ``dur_ns``.
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
        if name == "self_ns" and "dur_ns" in self.rows.columns:
            return self.rows["dur_ns"].cast(dtype).alias(name)
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
