"""Model passes of ggml, found without any marker, in one worker's rows as they are printed.

A pass is one graph, operation by operation, and graphs repeat: once a graph is known, whole passes are compared with it
at once. Where no known graph fits, the end of the pass is searched: the layer falls back, since a pass runs through the
worker's layers from the lowest to the highest, or, within one layer or without any, the beginning of the pass comes
again. One repeated name alone proves nothing (``norm-0`` prints five times in a pass).

What stands between the last layer of one pass and the first of the next (the output head, the embedding) is divided
where the pass's own beginning comes again; else by a known graph's beginning, by node numbers (they only rise within a
graph) or by names (`graphs`). If nothing tells, it is given to the pass before and said to be unclear.

Works in batches with carried state. A pass is held back until it is whole and the next one has begun: what is found
does not depend on how the rows were divided.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracekit.checks import Finding
from tracekit.passes.damage import Doubts, damage
from tracekit.passes.graphs import Flags, Graph, HeadTable, Ints, graph_of, head_table

__all__ = ["PHASES", "GgmlPasses", "HeadTable", "Passes", "head_table"]

#: What the codes in `Passes.phase` stand for.
PHASES = (None, "decode", "prefill")
_UNKNOWN, _DECODE, _PREFILL = 0, 1, 2

#: Batches of up to so many rows may be speculation, or one row each of several sequences.
_SMALL = 16
#: More sequences than this are not decoded together: a batch of which every row has an output is then a prompt.
_MANY = 64

#: So many operations at least make a beginning that is looked for.
_BEGINNING = 4
#: A pass is at most so many operations long.
_LONGEST = 1 << 17
#: Rows that are searched for the end of a pass at first; then four times as many, and so on.
_SEARCHED = 1 << 13
#: Graphs that are kept. A log with more has no clear steps.
_GRAPHS = 512


@dataclass(frozen=True, slots=True)
class Passes:
    """What is known of rows that are settled, in order: one value per row; -1 is not known.

    Attributes:
        step: index of the pass within its run; run: of several that were appended, from 0.
        tokens: rows in the batch; phase: index into `PHASES`.
        layer: filled between equal neighbours of a pass; inferred: where it was.
    """

    step: npt.NDArray[np.int32]
    run: npt.NDArray[np.uint16]
    tokens: npt.NDArray[np.int32]
    phase: npt.NDArray[np.int8]
    layer: npt.NDArray[np.int16]
    inferred: Flags


@dataclass(slots=True)
class _Found:
    """Passes of one graph in a row, as they are found: whole columns per pass."""

    graph: Graph
    count: int
    step: int
    run: int
    tokens: Ints
    outputs: Ints


@dataclass(slots=True)
class GgmlPasses:
    """Finds passes in one stream. Feed it rows as they come, then finish.

    Attributes:
        widths: the batch of each pass so far, -1 where it is not known.
    """

    widths: list[int] = field(default_factory=list)
    _rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _before: int = 0
    _graphs: dict[bytes, Graph] = field(default_factory=dict)
    _beginnings: dict[int, list[Graph]] = field(default_factory=dict)
    _found: list[_Found] = field(default_factory=list)
    _doubts: Doubts = field(default_factory=Doubts)
    _step: int = 0
    _run: int = 0
    _places: list[int] = field(default_factory=list)
    _models: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _last: tuple[int, int] = (-1, -1)
    _patience: int = 0

    def feed(self, heads: Ints, table: HeadTable) -> Passes:
        """Take the next rows (ids of heads); return what is settled, the oldest first."""
        self._rows = np.concatenate((self._rows, heads)) if len(self._rows) else heads
        self._advance(table, last=False)
        return self._settled()

    def finish(self, table: HeadTable) -> Passes:
        """Return the rest."""
        self._advance(table, last=True)
        return self._settled()

    def restart(self, table: HeadTable) -> Passes:
        """Return the rest of a run, because it is known that the next row is another's (a banner, an ordinal)."""
        rest = self.finish(table)
        self._next_run()
        return rest

    def findings(self) -> Iterator[Finding]:
        """Tell what does not fit; call it when all rows were fed. `Finding.line` counts rows from 1."""
        opening = self._doubts.opening
        whole = [opening] if opening is not None and opening.count > 1 else []
        yield from self._doubts.findings([*whole, *self._graphs.values()], self.widths, self._places)

    # ------------------------------------------------------------ from rows to passes

    def _advance(self, table: HeadTable, *, last: bool) -> None:
        keys = table.key[self._rows]
        start = 0
        while start < len(keys):
            size = self._known(keys, start, table, last=last)
            if size == 0:
                size = self._new(keys, start, table, last=last)
            if size <= 0:
                break
            start += size
        self._rows = self._rows[start:].copy()
        self._before += start

    def _known(self, keys: Ints, start: int, table: HeadTable, *, last: bool) -> int:
        """Take passes of a known graph, as many as follow one another; return their rows.

        The next pass must have begun: this one might be longer than the graph. 0: no known graph, -1: more must be
        seen.
        """
        rest = len(keys) - start
        for graph in self._beginnings.get(int(keys[start]), ()):
            size = len(graph.keys)
            if size > rest:
                if not last and (graph.keys[:rest] == keys[start:]).all():
                    return -1
                continue
            count = _repeats(keys[start:], graph.keys)
            behind = start + count * size
            if count and behind == len(keys) and not last:
                count -= 1
                if not count:
                    return -1
            elif count and behind < len(keys) and int(keys[behind]) not in self._beginnings:
                count -= 1
            if count:
                self._take(start, graph, count, table)
                return count * size
        return 0

    def _new(self, keys: Ints, start: int, table: HeadTable, *, last: bool) -> int:
        """Take one pass that is not known; return its rows, 0 if its end is not in sight yet."""
        rest = len(keys) - start
        if not last and rest < self._patience:
            return 0
        size, clear = self._search(keys[start:], self._rows[start:], table, last=last)
        # What does not depend on when it is done may be done rarely.
        self._patience = 0 if size else rest + rest // 4 + 1
        if size:
            self._classify(start, size, table, clear=clear, at_end=last and size == rest)
        return size

    def _search(self, keys: Ints, rows: Ints, table: HeadTable, *, last: bool) -> tuple[int, bool]:
        """Return how many rows the pass at the front has (0: cannot be told yet), and whether its end is clear."""
        reach = _SEARCHED
        while True:
            whole = reach >= len(keys)
            search = _Search(keys[:reach], rows[:reach], table, self._beginnings, ended=last and whole)
            size = search.size()
            if size:
                return self._without_known_end(keys[:size]), search.clear
            if whole:
                return (len(keys), True) if last else (0, True)
            if reach == _LONGEST:
                return _LONGEST, False
            reach *= 4

    def _without_known_end(self, keys: Ints) -> int:
        """Return the length without a whole pass of a known graph at the end, if something else stands before it.

        A draft model's layers may lead up to the worker's own: nothing falls between them.
        """
        for graph in self._graphs.values():
            size = len(graph.keys)
            if graph.count > 1 and size < len(keys) and (keys[-size:] == graph.keys).all():
                return len(keys) - size
        return len(keys)

    # ------------------------------------------------------------ what a pass is

    def _classify(self, start: int, size: int, table: HeadTable, *, clear: bool, at_end: bool) -> None:
        """Take one pass: a known graph, a damaged one, or a new graph."""
        rows = self._rows[start : start + size]
        graph = self._graphs.get(table.key[rows].tobytes())
        if size >= _LONGEST:
            self._doubts.endless.append(self._before + start)
            self._take(start, graph_of(rows, table), 1, table)
        elif graph is None:
            self._take_new(start, size, table, clear=clear, at_end=at_end)
        else:
            if graph.gaps and graph.count == 1:
                self._expect(graph)
            self._take(start, graph, 1, table)

    def _take_new(self, start: int, size: int, table: HeadTable, *, clear: bool, at_end: bool) -> None:
        """Take a pass that was not seen before, damaged or not."""
        rows = self._rows[start : start + size]
        graph = graph_of(rows, table)
        graph.seen(_batch(table.rows[rows[np.newaxis, graph.batch]]))
        hurt = damage(graph, self._graphs.values())
        opening = hurt is None and self._cut_front(start, size, table)
        if opening or (hurt is not None and hurt.kind == "beginning"):
            graph = graph_of(rows, table, begins_whole=False)
        graph.first, graph.step = self._before + start, len(self.widths)
        joins = hurt is not None and self._doubts.joins(hurt)
        if opening:
            self._doubts.opening = graph
            self._expect(graph)
        elif hurt is None:
            self._learn(graph)
            if not clear:
                self._doubts.unclear.append(graph.first)
        elif not joins and self._doubts.add(hurt, graph, at_end=at_end):
            self._learn(graph)  # what comes twice is a graph of its own
        self._take(start, graph, 1, table, joins=joins)

    def _cut_front(self, start: int, size: int, table: HeadTable) -> bool:
        """Whether the log begins within a pass: above the layer that the next pass begins with, or behind all."""
        if self._before + start:
            return False
        placed = _layers(self._rows[start : start + size], table)
        behind = _layers(self._rows[start + size : start + size + _SEARCHED], table)
        return bool(len(behind) and (not len(placed) or placed[0] > behind[0]))

    def _learn(self, graph: Graph) -> None:
        if len(self._graphs) < _GRAPHS:
            self._graphs[graph.keys.tobytes()] = graph
            if not graph.gaps:
                self._expect(graph)

    def _expect(self, graph: Graph) -> None:
        """Look for that graph from now on; for one that may be two models' passes only when it came again."""
        several = self._beginnings.setdefault(int(graph.keys[0]), [])
        several.append(graph)
        several.sort(key=lambda g: -len(g.keys))

    def _take(self, start: int, graph: Graph, count: int, table: HeadTable, *, joins: bool = False) -> None:
        """Note passes of one graph; one that `joins` goes on with the step before."""
        size = len(graph.keys)
        passes = self._rows[start : start + count * size].reshape(count, size)
        tokens = _batch(table.rows[passes[:, graph.batch]])
        outputs = table.rows[passes[:, graph.output]] if graph.output >= 0 else np.full(count, -1, np.int64)
        if joins:
            tokens = np.array(self.widths[-1:], np.int64)
            self._found.append(_Found(graph, count, self._step - 1, self._run, tokens, outputs))
            return
        before = self.widths[-1] if self.widths else -1
        if self._doubts.begins_run(graph, len(self.widths), int(tokens[0]), before):
            self._next_run()
        step = -1 if size >= _LONGEST else self._step
        self._found.append(_Found(graph, count, step, self._run, tokens, outputs))
        graph.count += count
        graph.seen(tokens)
        if step >= 0:
            self._step += count
            self._places += (self._before + start + size * np.arange(count)).tolist()
            self.widths += tokens.tolist()

    def _next_run(self) -> None:
        self._run += 1
        self._step = 0

    # ------------------------------------------------------------ from passes to rows

    def _settled(self) -> Passes:
        """Hand over what was found."""
        found, self._found = self._found, []
        if not found:
            return _no_rows()
        counts = [f.count for f in found]
        sizes = np.repeat([len(f.graph.keys) for f in found], counts)
        tokens = np.concatenate([f.tokens for f in found])
        step = np.concatenate([f.step + np.arange(f.count, dtype=np.int32) for f in found])
        run = np.repeat(np.array([f.run for f in found], np.uint16), counts)
        model = np.repeat([self._models.setdefault(f.graph.model, len(self._models)) for f in found], counts)
        outputs = np.concatenate([f.outputs for f in found])
        phase = _phases(tokens, outputs, step == 0, self._drafted(tokens, model, step == 0))
        self._doubts.phaseless += int(((phase == _UNKNOWN) & (tokens > 0)).sum())
        return Passes(
            np.repeat(step, sizes),
            np.repeat(run, sizes),
            np.repeat(tokens.astype(np.int32), sizes),
            np.repeat(phase, sizes),
            np.concatenate([np.tile(f.graph.layer, f.count) for f in found]),
            np.concatenate([np.tile(f.graph.inferred, f.count) for f in found]),
        )

    def _drafted(self, tokens: Ints, model: Ints, opens: Flags) -> Flags:
        """Return before which passes another model made a token."""
        models = np.concatenate(([self._last[0]], model[:-1]))
        batches = np.concatenate(([self._last[1]], tokens[:-1]))
        self._last = int(model[-1]), int(tokens[-1])
        drafted: Flags = (models != model) & (batches == 1) & ~opens
        return drafted


def _no_rows() -> Passes:
    return Passes(
        np.zeros(0, np.int32),
        np.zeros(0, np.uint16),
        np.zeros(0, np.int32),
        np.zeros(0, np.int8),
        np.zeros(0, np.int16),
        np.zeros(0, np.bool_),
    )


def _layers(rows: Ints, table: HeadTable) -> Ints:
    """Return the layers of operations that do work and have one, in order."""
    layer = table.layer[rows]
    return layer[table.work[rows] & (layer >= 0)]


def _batch(rows: Ints) -> Ints:
    """Return the rows of the batch of each pass, from up to three results: what two of them say, else the first."""
    if not rows.shape[1]:
        return np.full(len(rows), -1, np.int64)
    if rows.shape[1] < 3:
        return rows[:, 0]
    return np.where(rows[:, 1] == rows[:, 2], rows[:, 1], rows[:, 0])


def _phases(tokens: Ints, outputs: Ints, opens: Flags, drafted: Flags) -> npt.NDArray[np.int8]:
    """Tell decode from prefill, pass by pass.

    One row is a decode step. Of a prompt only the last row, if any, goes through the output head; of a speculative
    batch, or of several sequences' next tokens, every row does. A worker without the output head does not see that:
    there a large batch is a prompt, and a small one behind a draft model's pass is speculation. What is left is
    unknown: small batches one after another may be speculation or the repeats of a short prompt.

    Args:
        tokens: rows of the batch; outputs: rows of the output head's result, -1 without one.
        opens: whether the pass is the first of its run: that is a prompt.
        drafted: whether a draft model made a token right before.
    """
    several = tokens > 1
    headed = several & (outputs >= 0)
    few = _few(tokens)
    prefill = np.where(
        headed,
        ((outputs < 2) & (outputs < tokens)) | ((outputs == tokens) & (tokens > _MANY)),
        (several & ~few) | (opens & few),
    )
    decode = (tokens == 1) | np.where(headed, (outputs == tokens) & (tokens <= _MANY), few & drafted)
    return np.where(prefill, _PREFILL, np.where(decode, _DECODE, _UNKNOWN)).astype(np.int8)


def _few(batch: Ints) -> Flags:
    return (batch > 1) & (batch <= _SMALL)


def _repeats(keys: Ints, graph: Ints) -> int:
    """Return how many passes of that graph stand at the front, one after another."""
    size, count, step = len(graph), 0, 1
    while True:
        end = min(count + step, len(keys) // size)
        if end == count:
            return count
        same = (keys[count * size : end * size].reshape(-1, size) == graph).all(axis=1)
        if not same.all():
            return count + int(np.argmin(same))
        count, step = end, step * 8


@dataclass(slots=True)
class _Search:
    """The search for the end of the pass that begins with the first row.

    Attributes:
        keys, rows: of the log from there on, as far as it is looked at.
        beginnings: known graphs, by their first operation.
        ended: whether the log ends with these rows.
        clear: whether it is known where the next pass begins.
    """

    keys: Ints
    rows: Ints
    table: HeadTable
    beginnings: dict[int, list[Graph]]
    ended: bool
    clear: bool = True

    def size(self) -> int:
        """Return the rows of the pass; 0 if its end is not among these rows, or more must be seen."""
        layer, work = self.table.layer[self.rows], self.table.work[self.rows]
        placed = np.flatnonzero(work & (layer >= 0))
        trails = np.flatnonzero(self.table.lead[self.rows[: int(placed[0])]] < 0) if len(placed) else placed
        if len(trails):  # the log begins behind the last layer
            return int(trails[-1]) + 1
        change = np.diff(layer[placed])
        fall = np.flatnonzero(change < 0)
        leap = self._leap(placed, np.flatnonzero(change > 1), int(fall[0]) if len(fall) else len(change))
        if leap:
            return leap
        if len(fall):
            last, first = int(placed[fall[0]]), int(placed[fall[0] + 1])
            if not self.ended and first + _BEGINNING > len(self.keys):
                return 0
            again = self._again(placed, first)
            if again < 0:
                return 0
            if 0 < again <= last:
                return again
            return self._between(last, first, again)
        again = self._again(placed, len(self.keys) - 1)
        if again < 0:
            return 0
        drop = self._node_drop(int(placed[0]) if len(placed) else len(self.keys))
        return min(x for x in (again, drop) if x) if again or drop else 0

    def _again(self, placed: Ints, end: int) -> int:
        """Return where the beginning of the pass comes again up to `end`; 0: nowhere, -1: more must be seen."""
        first = int(placed[0]) if len(placed) else 0
        length = min(max(_BEGINNING, first + 1), 64)
        for at in (np.flatnonzero(self.keys[1 : end + 1] == self.keys[0]) + 1).tolist():
            seen = self.keys[at : at + length]
            if (seen == self.keys[: len(seen)]).all():
                if len(seen) < length and not self.ended:
                    return -1
                if len(seen) > 1:
                    return at
        return 0

    def _between(self, last: int, first: int, again: int) -> int:
        """Return where the next pass begins, between the last layer of this and the first of the next."""
        lead = self.table.lead[self.rows]
        node = self.table.node[self.rows]
        passed = int(node[: last + 1].max(initial=-1))
        gap = np.arange(last + 1, first)
        begins = gap[(lead[gap] > 0) | ((node[gap] >= 0) & (node[gap] < passed))]
        latest = int(begins[0]) if len(begins) else first
        ends = gap[(lead[gap] < 0) & (gap < latest)]
        earliest = int(ends[-1]) + 1 if len(ends) else last + 1
        if earliest <= again <= latest:
            return again
        for at in range(earliest, latest + 1):
            if self._known_beginning(at):
                return at
        self.clear = earliest == latest or bool(len(begins)) or bool(len(ends))
        return latest if len(begins) or not len(ends) else earliest

    def _known_beginning(self, at: int) -> bool:
        for graph in self.beginnings.get(int(self.keys[at]), ()):
            seen = self.keys[at : at + _BEGINNING]
            if len(seen) == _BEGINNING <= len(graph.keys) and (seen == graph.keys[:_BEGINNING]).all():
                return True
        return False

    def _leap(self, placed: Ints, leaps: Ints, before: int) -> int:
        """Return where another model's pass begins, though its layers stand above this one's; 0 if nowhere.

        So it is where the draft model of a worker's upper layers has the lower ones' numbers. A leap in the layers is
        such a place if a known graph ends before it or begins behind it.
        """
        for at in leaps[leaps < before].tolist():
            last, first = int(placed[at]), int(placed[at + 1])
            for begin in range(last + 1, first + 1):
                if self._known_beginning(begin) or self._known_whole(begin):
                    return begin
        return 0

    def _known_whole(self, size: int) -> bool:
        front = self.keys[:size]
        graphs = self.beginnings.get(int(front[0]), ())
        return any(len(g.keys) == size and (g.keys == front).all() for g in graphs)

    def _node_drop(self, end: int) -> int:
        """Return where node numbers fall, before `end`; 0 if nowhere."""
        node = self.table.node[self.rows[:end]]
        numbered = np.flatnonzero(node >= 0)
        fall = np.flatnonzero(np.diff(node[numbered]) < 0)
        return int(numbered[fall[0] + 1]) if len(fall) else 0
