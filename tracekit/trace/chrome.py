"""Chrome's JSON trace format, for tools that read nothing else.

Slices are complete events (``X``) in bracket order, times in microseconds with three decimals, so that no nanosecond
is lost. The format keeps no order of equal times, nests by time alone and loses overlapping slices in Perfetto: lanes
see to it that there are none. Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.trace.slices import Numbering, Slices, Texts
from tracekit.trace.source import Ints


class ChromeWriter:
    """Writes processes, tracks (as threads), slices, arrows and counters as JSON."""

    def __init__(self, file: BinaryIO, texts: Texts) -> None:
        self.file = file
        self.texts = texts
        self._process: dict[int, int] = {}  # per track, its process
        self._names: dict[int, str] = {}  # per track, its name
        self._quoted: dict[int, list[str]] = {}  # per numbering, its texts as JSON
        self._details: dict[str, str] = {}
        self._any = False
        self.file.write(b'{"displayTimeUnit":"ns","traceEvents":[')

    def process(self, ordinal: int, name: str, labels: Sequence[str]) -> None:
        """Declare a process; processes stand by ordinal, from 1."""
        self._event("M", ordinal, 0, name="process_name", args={"name": name})
        self._event("M", ordinal, 0, name="process_sort_index", args={"sort_index": ordinal})
        if labels:
            self._event("M", ordinal, 0, name="process_labels", args={"labels": ", ".join(labels)})

    def track(self, track: int, *, process: int, name: str, rank: int, unit: str | None = None) -> None:
        """Declare a track of a process (0: of none), a counter if it has a unit; tracks stand by rank."""
        self._process[track], self._names[track] = process, name if unit is None else f"{name} ({unit})"
        if unit is None:
            self._event("M", process, track, name="thread_name", args={"name": name})
            self._event("M", process, track, name="thread_sort_index", args={"sort_index": rank})

    def slices(self, slices: Slices) -> None:
        """Write slices in the order in which they open."""
        if not len(slices.track):
            return
        names, categories, values = (
            self._quotations(n) for n in (self.texts.names, self.texts.categories, self.texts.values)
        )
        columns = pl.DataFrame(
            {
                "name": names.gather(slices.name),
                "cat": categories.gather(slices.category),
                "ts": _microseconds(slices.start_ns),
                "dur": _microseconds(slices.dur_ns),
                "pid": pl.Series([str(self._process[t]) for t in slices.track.tolist()], dtype=pl.String),
                "tid": pl.Series(slices.track).cast(pl.String),
                "args": _arguments(slices, values),
            }
        )
        line: list[pl.Expr] = [pl.lit('{"ph":"X"')]
        for name in ("name", "cat", "ts", "dur", "pid", "tid"):
            line += [pl.lit(f',"{name}":'), pl.col(name)]
        text = columns.select(pl.concat_str(*line, pl.lit(',"args":{'), "args", pl.lit("}}"))).to_series()
        self._write(text.gather(np.argsort(slices.opens)).to_list())
        for phase, (rows, ids) in (("s", slices.flows_out), ("f", slices.flows_in)):
            for row, number in zip(rows.tolist(), ids.tolist(), strict=True):
                track = int(slices.track[row])
                at_ns = int(slices.start_ns[row]) + (int(slices.dur_ns[row]) if phase == "s" else 0)
                binding = {"bp": "e"} if phase == "f" else {}
                self._event(phase, self._process[track], track, at_ns, name="step", cat="step", id=number, **binding)

    def counter(self, track: int, times_ns: Ints, values: npt.NDArray[np.float64]) -> None:
        """Write values of a counter, sorted by time."""
        process, name = self._process[track], self._names[track]
        for time_ns, value in zip(times_ns.tolist(), values.tolist(), strict=True):
            self._event("C", process, 0, time_ns, name=name, args={"value": value})

    def about(self, track: int, title: str, details: dict[str, str]) -> None:
        """Write what the trace says of itself: as an instant, and at the end of the file."""
        self._details = {"title": title, **details}
        self._event("i", self._process[track], track, 0, name=title, cat="about", s="t", args=details)

    def close(self) -> None:
        """Write what ends the file."""
        self.file.write(b'\n],"otherData":' + json.dumps(self._details).encode() + b"}\n")

    def _event(self, phase: str, process: int, track: int, at_ns: int | None = None, **others: object) -> None:
        text = json.dumps({"ph": phase, "pid": process, "tid": track, **others}, separators=(",", ":"))
        if at_ns is not None:  # set as text: a float would round late times
            text = f'{text[:-1]},"ts":{at_ns // 1000}.{at_ns % 1000:03}}}'
        self._write([text])

    def _write(self, lines: Sequence[str]) -> None:
        self.file.write((",\n" if self._any else "\n").encode() + ",\n".join(lines).encode())
        self._any = True

    def _quotations(self, numbering: Numbering) -> pl.Series:
        """Return every text so far as JSON: each is escaped once."""
        quoted = self._quoted.setdefault(id(numbering), [])
        quoted += [json.dumps(t) for t in numbering.known[len(quoted) :]]
        return pl.Series(quoted, dtype=pl.String)


def _microseconds(values_ns: Ints) -> pl.Series:
    """Return nanoseconds as decimal microseconds, exactly.

    >>> _microseconds(np.array([1234567, 5])).to_list()
    ['1234.567', '0.005']
    """
    ns = pl.Series("ns", values_ns)
    return (
        ns.to_frame()
        .select(
            pl.concat_str(
                (pl.col("ns") // 1000).cast(pl.String), pl.lit("."), (pl.col("ns") % 1000).cast(pl.String).str.zfill(3)
            )
        )
        .to_series()
    )


def _arguments(slices: Slices, quoted: pl.Series) -> pl.Series:
    """Return the arguments of each slice as the inside of a JSON object."""
    columns = []
    for argument in slices.arguments:
        values = quoted.gather(argument.values) if argument.is_text else pl.Series(argument.values).cast(pl.String)
        whole = pl.Series([None], dtype=pl.String).new_from_index(0, len(slices.track))
        columns.append((f'"{argument.name}":' + values).alias("v").to_frame().pipe(_spread, argument.rows, whole))
    frame = pl.DataFrame([c.alias(str(n)) for n, c in enumerate(columns)])
    if not columns:
        return pl.Series([""]).new_from_index(0, len(slices.track))
    return frame.select(pl.concat_str(pl.all(), separator=",", ignore_nulls=True)).to_series()


def _spread(values: pl.DataFrame, rows: Ints, whole: pl.Series) -> pl.Series:
    return whole.scatter(rows, values.to_series()) if len(rows) < len(whole) else values.to_series()
