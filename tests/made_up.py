"""Events made by hand for tests of traces: what is not said is as a plain ggml operation has it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracekit.counters import no_counters
from tracekit.frame import EVENTS, SUMMARIES, conform, empty


@dataclass
class MadeUp:
    """A source of a trace."""

    frames: list[pl.DataFrame]
    label: str = "made up"
    summaries: pl.LazyFrame = field(default_factory=lambda: empty(SUMMARIES).lazy())
    topology: str | None = None
    sensors: pl.DataFrame = field(default_factory=no_counters)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        for frame in self.frames:
            yield frame.select(list(EVENTS) if columns is None else list(columns))


def events(rows: Sequence[dict[str, Any]], **shared: Any) -> pl.DataFrame:
    """Build a frame of events, one a row; `shared` holds for all of them."""
    plain = {
        "dialect": "ggml-sycl", "stream": "w.log", "run": 0, "worker": "w", "op": "MUL", "name": "x", "kind": "event",
        "category": "elementwise", "clock": "host-wait", "dur_ns": 1000, "depth": 0, "recovered": False,
    }  # fmt: skip
    whole = [plain | shared | {"line": n} | row for n, row in enumerate(rows, 1)]
    names = {key for row in whole for key in row}
    frame = pl.DataFrame({key: [row.get(key) for row in whole] for key in names}, strict=False)
    if "self_ns" not in frame.columns:
        frame = frame.with_columns(pl.col("dur_ns").alias("self_ns"))
    return conform(frame, EVENTS)
