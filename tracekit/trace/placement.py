"""The second reading: when each slice stands, and on which track."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np
import polars as pl

from tracekit.trace.lanes import Lanes
from tracekit.trace.layout import Plan
from tracekit.trace.source import Bools, Ints, Piece, TraceSource, column, pieces, runs, selected, wanted
from tracekit.trace.spans import enclose, steps_and_layers
from tracekit.trace.survey import StepCarry, Survey, track_kind
from tracekit.trace.trees import Forest, depths, forest, inside_parents, reordered, tree_of, without

TrackKind = Literal["about", "main", "collectives", "host", "overflow"]

#: What the second reading needs.
_COLUMNS = (
    "stream", "line", "run", "worker", "device", "op", "name", "category", "layer", "shape", "tokens", "phase", "step",
    "call", "kind", "clock", "start_ns", "arrival_ns", "dur_ns", "self_ns", "depth",
)  # fmt: skip

#: The kind of the track by number: see `survey.track_kind`.
_BESIDE: tuple[TrackKind, ...] = ("main", "collectives", "host")


@dataclass(frozen=True, slots=True)
class TrackKey:
    """Which track of a strand: its main one, or one of those for what overlaps; lanes after the first likewise."""

    strand: int
    kind: TrackKind
    lane: int = 0


@dataclass(slots=True)
class Tracks:
    """Numbers the tracks of operations in the order in which they are met; track 0 tells about the trace."""

    known: list[TrackKey] = field(default_factory=lambda: [TrackKey(-1, "about")])
    _numbers: dict[TrackKey, int] = field(default_factory=dict)

    def number(self, key: TrackKey) -> int:
        """Return the number of a track, a new one if it was not met before."""
        if key not in self._numbers:
            self._numbers[key] = len(self.known)
            self.known.append(key)
        return self._numbers[key]


OPERATION, LAYER, STEP = 0, 1, 2


@dataclass(slots=True)
class Placed:
    """Slices of a piece on the timeline: ordered by track, then by time, children before their parents.

    Attributes:
        frame: the events, schema `frame.EVENTS`.
        kind: OPERATION, LAYER or STEP per slice; the last two hold runs of trees.
        row: row of the frame per slice: the event, or the first tree of a layer or step.
        strand: per row of the frame.
        track, start_ns, dur_ns, depth: per slice.
        shift_ns: per slice, how far its tree was moved from its stamp; None where no times are known.
    """

    frame: pl.DataFrame
    kind: Ints
    row: Ints
    strand: Ints
    track: Ints
    start_ns: Ints
    dur_ns: Ints
    depth: Ints
    shift_ns: Ints | None


@dataclass(slots=True)
class Moves:
    """What was done so that slices nest: counts for the report."""

    shifted: int = 0
    most_shifted_ns: int = 0
    misfits: int = 0


class Placer:
    """Places pieces one after the other; what it keeps is one cursor per strand and track."""

    def __init__(self, survey: Survey, plan: Plan, tracks: Tracks, shown: pl.Expr | None = None) -> None:
        self.survey = survey
        self.plan = plan
        self.tracks = tracks
        self.shown = shown
        self.moves = Moves()
        self.strands = survey.strands
        self._carry = StepCarry()
        self._cursor: dict[int, int] = {}  # per strand, where the next tree is packed
        self._part: dict[int, tuple[int, int]] = {}  # per strand, the part that the cursor is in
        self._free: dict[int, int] = {}  # per track, where its last slice ends
        self._lanes: dict[TrackKey, Lanes] = {}  # per first lane, where trees overlap

    def place(self, source: TraceSource, steps: range | None = None) -> Iterator[Placed]:
        """Yield the events of a source, placed."""
        batches = (selected(batch, steps) for batch in source.batches(wanted(_COLUMNS, self.shown)))
        hidden = [n for n, f in enumerate(self.survey.facts) if not f.shown]
        for piece in pieces((b for b in batches if b.height), self.strands):
            seen = piece.without(hidden) if hidden else piece
            if len(seen.strand):
                yield self.place_piece(seen)

    def place_piece(self, piece: Piece) -> Placed:
        """Place the rows of one piece."""
        frame, strand = piece.frame, piece.strand
        dur = frame["dur_ns"].to_numpy()
        trees = forest(column(frame, "depth"), strand)
        roots = trees.roots
        start = np.zeros(len(dur), np.int64)
        ends = _known_ends(frame, self.plan)
        shift = None
        if ends is None:
            track = self._tracks(strand[roots], np.zeros(len(roots), np.int64))
            start[roots] = self._packed(frame, strand, roots, dur)
        else:
            track = self._tracks(strand[roots], self._kinds(frame, strand, roots))
            if self.plan.layout == "arrival":
                start[roots] = self._stamped(track, ends[roots], dur[roots])
                shift = self._shift(trees, start + dur - ends)
            else:
                start[roots] = ends[roots] - dur[roots]
                track = self._in_lanes(track, start[roots], dur[roots])
        if len(roots) < len(dur):
            track = track[np.searchsorted(roots, np.arange(len(dur)))]
        misfits = inside_parents(trees, start, dur, ends)
        if len(misfits):
            trees, track = self._move_out(trees, misfits, track, start, dur)
        placed = _Rows(frame, strand, trees, track, start, dur, shift)
        return self._with_spans(placed.by_track() if ends is not None or len(misfits) else placed)

    def _tracks(self, strand: Ints, kind: Ints) -> Ints:
        """Return the first lane of each tree's track."""
        first = runs(strand, kind)
        numbers = [self.tracks.number(TrackKey(int(strand[i]), _BESIDE[kind[i]])) for i in first]
        return np.repeat(np.array(numbers, np.int64), np.diff(np.append(first, len(strand))))

    def _kinds(self, frame: pl.DataFrame, strand: Ints, roots: Ints) -> Ints:
        """Tell collectives and host work apart, on strands where they overlap the rest."""
        overlaps = np.array([f.overlaps[self.plan.layout] for f in self.survey.facts])
        kinds = track_kind(frame["category"])[roots]
        return np.where(overlaps[strand[roots]], kinds, 0)

    def _packed(self, frame: pl.DataFrame, strand: Ints, roots: Ints, dur: Ints) -> Ints:
        """Return the start of each tree, one behind the other; where the plan says when parts start, from there."""
        mine, lasts = strand[roots], dur[roots]
        run = step = np.zeros(len(roots), np.int64)
        if self.plan.starts:
            whole_run, whole_step = self._carry.fill(strand, column(frame, "run"), column(frame, "step"))
            run, step = whole_run[roots], whole_step[roots]
        first = runs(mine, run, step)
        upto = np.cumsum(lasts)
        bounds = np.append(first, len(roots))
        base = np.empty(len(first), np.int64)
        for n, (a, b) in enumerate(pairwise(bounds.tolist())):
            one, part = int(mine[a]), (int(run[a]), int(step[a]))
            at = self._cursor.get(one, 0)
            if self._part.get(one) != part:
                at = self.plan.starts.get((one, *part), at)
                self._part[one] = part
            before = int(upto[a] - lasts[a])
            base[n] = at - before
            self._cursor[one] = at + int(upto[b - 1]) - before
        return np.repeat(base, np.diff(bounds)) + upto - lasts

    def _stamped(self, track: Ints, ends: Ints, dur: Ints) -> Ints:
        """Return the start of each tree: it ends at its stamp, or later where the one before it still runs."""
        start = np.empty(len(ends), np.int64)
        for one in np.unique(track):
            mine = np.flatnonzero(track == one)
            upto = np.cumsum(dur[mine])
            placed = np.maximum.accumulate(np.maximum(ends[mine] - upto, self._free.get(int(one), 0)))
            start[mine] = placed + upto - dur[mine]
            self._free[int(one)] = int(placed[-1] + upto[-1])
        return start

    def _shift(self, trees: Forest, moved: Ints) -> Ints:
        shift = np.zeros(len(moved), np.int64)
        roots = trees.roots
        shift[roots] = moved[roots]
        self.moves.shifted += int(np.count_nonzero(shift))
        self.moves.most_shifted_ns = max(self.moves.most_shifted_ns, int(shift.max(initial=0)))
        return shift

    def _in_lanes(self, track: Ints, start: Ints, dur: Ints) -> Ints:
        """Return the lane of each tree: the first in which it overlaps nothing."""
        laned = track.copy()
        for one in np.unique(track):
            mine = np.flatnonzero(track == one)
            mine = mine[np.argsort(start[mine], kind="stable")]
            key = self.tracks.known[one]
            lanes = self._lanes.setdefault(key, Lanes())
            chosen = lanes.take(start[mine], start[mine] + dur[mine])
            for lane in np.unique(chosen[chosen > 0]):
                laned[mine[chosen == lane]] = self.tracks.number(TrackKey(key.strand, key.kind, int(lane)))
        return laned

    def _move_out(self, trees: Forest, misfits: Ints, track: Ints, start: Ints, dur: Ints) -> tuple[Forest, Ints]:
        """Give children that do not fit into their parents a track of their own: no duration is changed."""
        self.moves.misfits += len(misfits)
        parent = trees.parent.copy()
        parent[misfits] = -1
        moved = Forest(depths(parent), parent)
        roots = moved.roots
        out = np.isin(roots, misfits)
        strands = np.array([t.strand for t in self.tracks.known], np.int64)[track[roots]]
        lane = track[roots].copy()
        for one in np.unique(strands[out]):
            mine = np.flatnonzero(out & (strands == one))
            mine = mine[np.argsort(start[roots[mine]], kind="stable")]
            key = TrackKey(int(one), "overflow")
            at = start[roots[mine]]
            chosen = self._lanes.setdefault(key, Lanes()).take(at, at + dur[roots[mine]])
            lane[mine] = [self.tracks.number(TrackKey(int(one), "overflow", int(c))) for c in chosen]
        return moved, lane[tree_of(moved)]

    def _with_spans(self, rows: "_Rows") -> Placed:
        """Put layers and steps around the trees that they hold, and take out what is not to be shown."""
        main = np.array([k.kind == "main" and k.lane == 0 for k in self.tracks.known])
        step, layer = steps_and_layers(rows.frame, rows.trees, rows.track, main[rows.track])
        everything = enclose(rows.trees, [layer, step])
        sources = (np.arange(len(rows.dur)), layer.first, step.first)
        row = everything.spread(*sources)
        kind = everything.spread(*(np.full(len(r), k) for k, r in enumerate(sources)))
        begins = rows.start[row]
        lasts = everything.spread(
            rows.dur, *(rows.start[s.last] + rows.dur[s.last] - rows.start[s.first] for s in (layer, step))
        )
        tracks = rows.track[row]
        depth = everything.depth
        if self.shown is not None:
            nested = forest(depth, tracks)
            keep = self._kept(rows.frame, row, kind, nested)
            depth = without(nested, keep).depth
            row, kind, begins, lasts, tracks = (a[keep] for a in (row, kind, begins, lasts, tracks))
        begins -= self.plan.origin_ns
        moved = None if rows.shift is None else np.where(kind == OPERATION, rows.shift[row], 0)
        return Placed(rows.frame, kind, row, rows.strand, tracks, begins, lasts, depth, moved)

    def _kept(self, frame: pl.DataFrame, row: Ints, kind: Ints, nested: Forest) -> Bools:
        """Return which slices are shown: operations by the filter, layers and steps if one of theirs is."""
        assert self.shown is not None
        shown = frame.select(self.shown.alias("shown")).to_series().fill_null(value=False).to_numpy()
        keep: Bools = (kind == OPERATION) & shown[row]
        for level in range(int(nested.depth.max(initial=0)), 0, -1):
            inner = np.flatnonzero((nested.depth == level) & keep)
            holder = nested.parent[inner]
            keep[holder[kind[holder] != OPERATION]] = True
        return keep


def _known_ends(frame: pl.DataFrame, plan: Plan) -> Ints | None:
    if plan.layout == "arrival":
        return frame["arrival_ns"].to_numpy()
    if plan.layout == "start":
        return (frame["start_ns"] + frame["dur_ns"]).to_numpy()
    return None


@dataclass(slots=True)
class _Rows:
    """Events that have their time and track, before steps and layers are put around them."""

    frame: pl.DataFrame
    strand: Ints
    trees: Forest
    track: Ints
    start: Ints
    dur: Ints
    shift: Ints | None

    def by_track(self) -> "_Rows":
        """Return them ordered by track and time, every tree whole."""
        roots = self.trees.roots
        rank = np.empty(len(roots), np.int64)
        rank[np.lexsort((self.start[roots], self.track[roots]))] = np.arange(len(roots))
        order = np.argsort(rank[tree_of(self.trees)], kind="stable")
        return _Rows(
            self.frame[order],
            self.strand[order],
            reordered(self.trees, order),
            self.track[order],
            self.start[order],
            self.dur[order],
            None if self.shift is None else self.shift[order],
        )
