"""Frames of events that were written to Parquet, read back."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.errors import UsageError
from tracekit.frame import COVERAGE, EVENTS, REJECTS, STEPS, SUMMARIES, Batch, conform, empty
from tracekit.outcome import Outcome, finding
from tracekit.source import Stream

#: Rows of a Parquet file that are read at once.
_SLICE_ROWS = 1 << 20


@dataclass(slots=True)
class FrameReading:
    """A frame that was written by `tracekit events`, read back in slices that end with a whole tree."""

    stream: Stream
    rows: int = 0

    def batches(self) -> Iterator[list[Batch]]:
        """Yield slices; what repeats is packed again."""
        try:
            frame = pl.scan_parquet(self.stream.path)
            missing = [c for c in EVENTS if c not in frame.collect_schema()]
            height = frame.select(pl.len()).collect().item()
        except (pl.exceptions.ComputeError, OSError) as error:
            raise UsageError(f"{self.stream.path}: is no Parquet file that can be read ({error})") from error
        if missing:
            raise UsageError(
                f"{self.stream.path}: lacks the columns {', '.join(missing[:3])}; "
                "only frames of `tracekit events` can be read back"
            )
        while self.rows < height:
            part = conform(frame.slice(self.rows, _SLICE_ROWS).collect(), EVENTS)
            if self.rows + part.height < height:
                roots = np.flatnonzero(part["depth"].to_numpy() == 0)
                part = part.head(int(roots[-1]) + 1 if len(roots) else part.height)
            self.rows += part.height
            yield [_pack(part)]

    def outcome(self) -> Outcome:
        """Return the counts; what the log lost is not known."""
        row = {"stream": self.stream.path, "dialect": "parquet", "records": self.rows}
        coverage = conform(pl.DataFrame({k: [v] for k, v in row.items()}), COVERAGE).with_columns(
            pl.col(pl.UInt64).fill_null(0)
        )
        note = finding(
            "note",
            "parquet",
            self.stream.path,
            "parquet",
            0,
            1,
            "a frame: what its log lost or refused is not known",
        )
        return Outcome(empty(SUMMARIES), empty(STEPS), empty(REJECTS), coverage, note, {})


def _pack(frame: pl.DataFrame) -> Batch:
    """Pack a whole frame: its repeating columns become heads."""
    repeating = ["dialect", "stream", "worker", "op", "name", "category", "shape", "clock", "kind", "rank", "device"]
    heads = frame.select(repeating).unique(maintain_order=True).with_row_index("head")
    rows = frame.join(heads, on=repeating, how="left", nulls_equal=True, maintain_order="left")
    return Batch(rows.drop(repeating), heads.drop("head"), {})
