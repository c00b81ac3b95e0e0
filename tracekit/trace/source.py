"""What a trace is written from, and how its rows are cut into pieces that hold whole trees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.frame import EVENTS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Rows at the end of a piece that are searched for a border first.
_NEAR_END = 1 << 12

#: Rows that are placed and encoded at once: few enough to stay in the processor's cache, and memory flat.
PIECE_ROWS = 1 << 16

#: A step or layer that is longer is cut: a log whose layers never change must not be held whole.
_LONGEST_RUN = 1 << 20


class TraceSource(Protocol):
    """Where events come from, as a `reading.Run` does. They are read twice: to see what there is, and to place it."""

    @property
    def label(self) -> str:
        """Return what the logs are called in the trace."""

    @property
    def summaries(self) -> pl.LazyFrame:
        """Return the rows that were printed as aggregates, schema `frame.SUMMARIES`. Asked for after `batches`."""

    @property
    def topology(self) -> str | None:
        """Return how workers share a step (pipeline or parallel), None if that is not known."""

    @property
    def sensors(self) -> pl.DataFrame:
        """Return what was sampled meanwhile, as `counters.read_counters` does, by time."""

    def batches(self, columns: Sequence[str] | None = None, /) -> Iterator[pl.DataFrame]:
        """Yield these columns of `frame.EVENTS`, afresh at each call.

        Stream after stream, in printed order within one. A batch belongs to one stream and cuts neither a tree
        of nested regions nor a model pass.
        """


@dataclass(slots=True)
class Strand:
    """Events that follow one another: one worker, one log, one clock. Times of two clocks are never added."""

    worker: str
    stream: str
    clock: str


@dataclass(slots=True)
class Strands:
    """Numbers the strands in the order in which they are met."""

    known: list[Strand] = field(default_factory=list)
    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def of(self, frame: pl.DataFrame) -> Ints:
        """Return the strand of each row."""
        codes = [column(frame, c) for c in ("worker", "stream", "clock")]
        if all((c == c[0]).all() for c in codes):
            number = self._number(frame, 0, tuple(int(c[0]) for c in codes)) if frame.height else 0
            return np.full(frame.height, number, np.int64)
        packed = (codes[0] << 42) | ((codes[1] & 0x1FFFFF) << 21) | (codes[2] & 0x1FFFFF)
        _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
        numbers = [self._number(frame, int(i), tuple(int(c[i]) for c in codes)) for i in first]
        return np.array(numbers, np.int64)[inverse]

    def _number(self, frame: pl.DataFrame, row: int, key: tuple[int, ...]) -> int:
        worker, stream, clock = key
        if (worker, stream, clock) not in self._numbers:
            self._numbers[worker, stream, clock] = len(self.known)
            self.known.append(Strand(*(str(frame.item(row, c) or "?") for c in ("worker", "stream", "clock"))))
        return self._numbers[worker, stream, clock]


def wanted(columns: Sequence[str], where: pl.Expr | None) -> list[str]:
    """Return the columns of `frame.EVENTS` to be read: those given, and those that a filter asks for."""
    asked = set(columns) | set(() if where is None else where.meta.root_names())
    return [c for c in EVENTS if c in asked]


def selected(frame: pl.DataFrame, steps: range | None) -> pl.DataFrame:
    """Return the rows that belong on the timeline of these steps; all rows if None."""
    if steps is None:
        return frame
    return frame.filter(pl.col("step").is_between(steps.start, steps.stop - 1))


@dataclass(slots=True)
class Piece:
    """Event rows ordered by strand, in printed order within one; whole trees, and whole steps and layers.

    Attributes:
        frame: schema `frame.EVENTS`, no samples.
        strand: number of the strand per row.
    """

    frame: pl.DataFrame
    strand: Ints

    def without(self, strands: Sequence[int]) -> "Piece":
        """Return the piece without some strands."""
        keep = ~np.isin(self.strand, strands)
        return self if keep.all() else Piece(self.frame.filter(pl.Series(keep)), self.strand[keep])


def pieces(batches: Iterator[pl.DataFrame], strands: Strands, rows: int = PIECE_ROWS) -> Iterator[Piece]:
    """Cut batches into pieces of about `rows` rows.

    The end of a batch is held back until the next one shows whether a step or a layer goes on in it.
    """
    tail: Piece | None = None
    for batch in batches:
        frame = batch.filter(pl.col("kind") == "event") if (batch["kind"] != "event").any() else batch
        if frame.is_empty():
            continue
        strand = strands.of(frame)
        if tail is not None:
            if (strand == tail.strand[0]).all() and len(tail.strand) < 4 * rows:
                frame = pl.concat([tail.frame, frame])
                strand = np.concatenate([tail.strand, strand])
            else:
                yield tail
            tail = None
        single = bool((strand == strand[0]).all())
        order = None if single else np.argsort(strand, kind="stable")
        at = 0
        while at < frame.height:
            piece, whole = _cut(frame, strand, order, at, rows)
            at += len(piece.strand)
            if whole or not single:
                yield piece
            else:
                tail = piece
    if tail is not None:
        yield tail


def _cut(frame: pl.DataFrame, strand: Ints, order: Ints | None, at: int, rows: int) -> tuple[Piece, bool]:
    """Return the piece that begins at a row, and whether it ends at a border (else at the batch's end)."""
    while True:
        if order is None:
            part = Piece(frame.slice(at, rows + 1), strand[at : at + rows + 1])
        else:
            chosen = order[at : at + rows + 1]
            part = Piece(frame[chosen], strand[chosen])
        ends = at + len(part.strand) >= frame.height
        border = _last_border(part, anywhere=rows > _LONGEST_RUN)
        if border and not ends:
            return Piece(part.frame.head(border), part.strand[:border]), True
        if ends:
            if border and order is None:
                return Piece(part.frame.head(border), part.strand[:border]), True
            return part, False
        rows *= 2


def _last_border(part: Piece, *, anywhere: bool) -> int:
    """Return before which row a piece may be cut at the latest, between any trees if need be; 0 if nowhere."""
    behind = max(0, len(part.strand) - _NEAR_END)  # most pieces have a border near their end
    if behind:
        found = _last_border(Piece(part.frame[behind:], part.strand[behind:]), anywhere=anywhere)
        if found:
            return behind + found
    frame = part.frame
    depth = frame["depth"].to_numpy()
    roots = np.flatnonzero(depth == 0)
    if len(roots) < 2:
        return 0
    if anywhere:
        return int(roots[-2]) + 1
    strand = part.strand[roots]
    run, step, layer = (column(frame, c)[roots] for c in ("run", "step", "layer"))
    same_pass = (run[1:] == run[:-1]) & (step[1:] == step[:-1])
    within = same_pass & ((step[1:] >= 0) | ((layer[1:] == layer[:-1]) & (layer[1:] >= 0)))
    borders = np.flatnonzero(~within | (strand[1:] != strand[:-1]))
    return int(roots[borders[-1]]) + 1 if len(borders) else 0


def column(frame: pl.DataFrame, name: str) -> Ints:
    """Return an integer column, -1 where it is not known."""
    return known(frame[name], otherwise=-1)


def known(values: pl.Series, *, otherwise: int) -> Ints:
    """Return whole numbers, or the codes of a Categorical, with another number for null."""
    if isinstance(values.dtype, pl.Categorical):
        values = values.to_physical()
    numbers = values.cast(pl.Int64)
    return (numbers.fill_null(otherwise) if numbers.null_count() else numbers).to_numpy()


def runs(*keys: npt.NDArray[np.generic]) -> Ints:
    """Return where a new run of equal keys begins.

    >>> runs(np.array([7, 7, 8, 8, 7]))
    array([0, 2, 4])
    """
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    changes: Bools = np.ones(len(keys[0]), np.bool_)
    changes[1:] = False
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)
