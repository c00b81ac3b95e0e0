"""Records of `llm_scaler` that several processes tore apart on one standard error, rebuilt.

One record is seven writes to an unbuffered stream, and writes of several processes come in any order::

    0 ``[llm-scaler][moe-kernel] device=``   1 an integer   2 `` kernel="``   3 the kernel's name
    4 ``" wait_ms=``   5 a number   6 a line end

So the text is a mixture of as many such sequences as there are processes. What is known of it:

- the order of fragments within a record, and that a process finishes one record before it begins the next;
- how a number is printed: the default of a C++ stream, six significant digits without trailing zeros (``%g``). So a run
  of digits can be several numbers, and often only one split makes numbers that are printed like that;
- which kernel follows which in a process, which takes how long, and who writes next, after whom: learned from the text.

`torn_pieces` cuts the text into pieces, `torn_writers` computes how likely each reading of them is. A value stands if
its probability is at least `SURE`. Its device is told, the surest first, as long as no more than `FALSE` of all are
expected to be told falsely, and never below `LEAST_SURE`; else it is null; its kernel likewise. Nothing is invented:
what is not sure is a reject. The text is read in parts that end where only one reading is left, so time is linear and
memory that of a part.

An intact-looking line can be false (a name in which two kernels are glued, a device read as a value): lines whose
kernel or device is not among the common ones of the log are taken apart like torn ones.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import polars as pl

from tracekit.dialect import Recovered
from tracekit.parsers.torn_pieces import (
    INTACT,
    KERNEL_TEXT,
    PREFIX,
    PREFIX_TEXT,
    WAIT_TEXT,
    WHOLE,
    Known,
    Piece,
    Segment,
    segments,
)
from tracekit.parsers.torn_writers import Reading, States, Votes, Writers

#: Posterior probability at which a value is told.
SURE = 0.995
#: What part of a log's records may bear a false device, or kernel, by their probabilities; the least of a told one.
FALSE, LEAST_SURE = 0.00055, 0.97

#: The most states that are kept, and the least probability relative to the best: to learn, to read, and where no
#: reading was left, to read once more.
_LEARN = (1e-4, 150)
_READ = (1e-6, 400)
_READ_AGAIN = (1e-12, 4_000)
#: Segments from which the order of writers is learned: half as many in each round before the last.
_LEARN_SEGMENTS = 20_000
_ROUNDS = 4
#: Segments of a part, at least and at most.
_LEAST, _MOST = 300, 20_000

_UNEXPLAINED = "torn so that no order of writes explains it"
_AMBIGUOUS = "a value that can be read in several ways"
_HEADLESS = "a value is left over: its record's first write is torn"


def is_torn(lines: pl.DataFrame) -> bool:
    """Return whether any line (column text) has pieces of a record and is not one whole record."""
    text = pl.col("text")
    piece = text.str.contains_any([PREFIX_TEXT, KERNEL_TEXT, WAIT_TEXT])
    whole = text.str.contains("^" + INTACT.pattern + r"\s*$")
    return bool(lines.select((piece & ~whole).any()).item())


def rebuild(lines: pl.DataFrame) -> Recovered | None:
    """Rebuild all records of a torn stream; None if too few of its records are intact to learn from.

    Args:
        lines: line UInt32, text String: all physical lines in order, other programs' and empty ones included.
    """
    known = Known.learn(lines) if is_torn(lines) else None
    if known is None:
        return None
    writers = Writers(known)
    sample = list(islice(segments(lines, known), _LEARN_SEGMENTS))
    for earlier in reversed(range(_ROUNDS)):
        learned = _Pass(writers, *_LEARN, learn=True)
        learned.read(sample[: _LEARN_SEGMENTS >> earlier])
        writers.learn()
    known.learn_times((known.kernels[v.kernel], v.text) for v in learned.values if v.kernel_sure >= SURE)
    told = _Pass(writers, *_READ)
    told.read(segments(lines, known))
    return told.recovered(lines)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value, its likeliest device and kernel, and how sure each is."""

    line: int
    text: str
    device: int
    device_sure: float
    kernel: int
    kernel_sure: float
    recovered: bool


@dataclass(slots=True)
class _Pass:
    """One reading of a text, part by part."""

    writers: Writers
    beam: float
    most: int
    learn: bool = False
    opened: int = 0
    values: list[_Value] = field(default_factory=list)
    rejects: list[tuple[int, str, str]] = field(default_factory=list)

    def read(self, row: Iterable[Segment]) -> None:
        """Read a text's segments."""
        reading = self._begin(self.writers.start())
        lost = False
        for segment in row:
            self.opened += bool(segment.pieces) and segment.pieces[0].what[0] in (PREFIX, WHOLE)
            if lost:
                lost = not segment.quiet
                continue
            reading.add(segment)
            if not reading.now:
                reading = self._again(reading)
            if not reading.now:
                self._give_up(reading)
                reading, lost = self._begin(self.writers.start()), not segment.quiet
            elif len(reading.segments) >= (_LEAST if len(reading.now) == 1 else _MOST):
                self._tell(reading)
                reading = self._begin(reading.now)
        self._tell(reading)

    def _begin(self, states: States) -> Reading:
        return Reading(self.writers, states, self.beam, self.most)

    def _again(self, lost: Reading) -> Reading:
        """Read a part once more, less likely readings too."""
        reading = Reading(self.writers, lost.ahead[0], *_READ_AGAIN)
        for segment in lost.segments:
            reading.add(segment)
            if not reading.now:
                return lost
        return reading

    def _give_up(self, reading: Reading) -> None:
        """Tell what was read up to the last moment at which no record was open."""
        self.rejects.append((reading.segments[-1].line, _UNEXPLAINED, ""))
        reading.cut(max((n for n, s in enumerate(reading.segments, 1) if s.quiet and reading.ahead[n]), default=0))
        self._tell(reading)

    def _tell(self, reading: Reading) -> None:
        first = len(self.values)
        unsure: dict[int, list[tuple[float, Piece]]] = defaultdict(list)
        for number, piece, votes in reading.votes(count=self.learn):
            sure = sum(votes.values())
            if piece.what[0] == WHOLE or sure >= SURE:
                self._decide(reading.segments[number].line, piece, votes)
            elif sure > 1 - SURE:
                unsure[number].append((sure, piece))
        self.values[first:] = reversed(self.values[first:])
        for number, readings in sorted(unsure.items()):
            self._refuse(reading.segments[number].line, readings)

    def _refuse(self, line: int, readings: list[tuple[float, Piece]]) -> None:
        """Reject each value that more likely than not stands here, with all its readings, the likeliest first."""
        left = sorted(readings, key=lambda reading: -reading[0])
        while left:
            best = left[0][1]
            same = [(p, other) for p, other in left if other.start == best.start or other.end == best.end]
            if sum(p for p, _ in same) > 0.5:
                self.rejects.append((line, _AMBIGUOUS, " or ".join(piece.text for _, piece in same)))
            left = [reading for reading in left if reading not in same]

    def _decide(self, line: int, piece: Piece, votes: Votes) -> None:
        kind, device, kernel = piece.what
        if kind == WHOLE:
            self.values.append(_Value(line, piece.text, device, 1.0, kernel, 1.0, recovered=False))
        else:
            self.values.append(_Value(line, piece.text, *_likely(votes, 0), *_likely(votes, 1), recovered=True))

    def recovered(self, lines: pl.DataFrame) -> Recovered:
        """Return all that was told of a text, and that records began whose first write itself is torn."""
        values, known = self.values, self.writers.known
        found = pl.DataFrame(
            {
                "line": pl.Series([v.line for v in values], dtype=pl.UInt32),
                "device": pl.Series([int(known.devices[v.device]) for v in values], dtype=pl.Int16),
                "device_sure": pl.Series([v.device_sure for v in values], dtype=pl.Float64),
                "kernel": pl.Series([known.kernels[v.kernel] for v in values], dtype=pl.String),
                "kernel_sure": pl.Series([v.kernel_sure for v in values], dtype=pl.Float64),
                "dur_ns": pl.Series([round(float(v.text) * 1e6) for v in values], dtype=pl.Int64),
                "recovered": pl.Series([v.recovered for v in values], dtype=pl.Boolean),
            }
        )
        events = found.select("line", _if_sure("device"), _if_sure("kernel"), "dur_ns", "recovered")
        waits, prefixes = (lines["text"].str.count_matches(t, literal=True).cum_sum() for t in (WAIT_TEXT, PREFIX_TEXT))
        headless = waits.cast(pl.Int64) - prefixes.cast(pl.Int64)
        surplus: int = max(0, *headless.to_list())
        if surplus:
            line, text = lines.filter(headless > 0).select("line", "text").row(0)
            self.rejects.append((line, _HEADLESS, text))
        refused = pl.DataFrame(
            self.rejects, schema={"line": pl.UInt32, "reason": pl.String, "text": pl.String}, orient="row"
        )
        return Recovered(events, refused, self.opened + surplus)


def _likely(votes: Votes, part: int) -> tuple[int, float]:
    """Return the likeliest device (part 0) or kernel (1) and how likely it is."""
    sums: dict[int, float] = defaultdict(float)
    for pair, p in votes.items():
        sums[pair[part]] += p
    best = max(sums, key=lambda number: sums[number])
    return best, sums[best] / sum(sums.values())


def _if_sure(name: str) -> pl.Expr:
    """Return an owner where it is sure enough, by the column ``…_sure``.

    The surest are told first, until the sum of what they lack is spent: so the part that is expected to be false is
    bounded (Newton and others, Detecting differential gene expression with a semiparametric hierarchical mixture
    method, 2004).
    """
    sure = pl.col(f"{name}_sure")
    surest = sure.sort(descending=True)
    told = ((1 - surest).cum_sum() <= FALSE * pl.len()) & (surest >= LEAST_SURE)
    return pl.when(sure >= surest.filter(told).min()).then(pl.col(name)).alias(name)
