"""Passes that lack operations or have some twice, and what else in a log's passes does not fit.

A damaged pass is a known graph without one block, or with one block twice. Other differences are other graphs: a
prompt's and a decode step's differ in many places, since nodes are numbered by position.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tracekit.checks import Finding
from tracekit.passes.graphs import Graph, Ints

#: So many of the commonest graphs are compared with a pass that is new.
_COMPARED = 16
#: Graphs of a single row and of several rows differ by a few operations of a worker with one layer.
_DIFFER = 4
#: Prompts are longer than this; shorter batches may be speculation.
_SHORT = 8
#: Another model that is seen only after so many passes belongs to another run: a draft model works from the start.
_SETTLED = 16
#: Of a log with more odd passes than this part, the odd ones tell nothing.
_UNCLEAR_PART = 0.1

#: What a pass lacks: its end, its beginning, a block between; or it has a block twice.
Kind = Literal["end", "beginning", "block", "twice"]


@dataclass(frozen=True, slots=True)
class Damage:
    """How a pass differs from a known graph: `count` operations are missing, or there twice."""

    kind: Kind
    base: Graph
    count: int


def damage(graph: Graph, graphs: Iterable[Graph]) -> Damage | None:
    """Return which known graph a pass was before one block of it was lost or repeated; None if it is another graph."""
    for base in sorted(graphs, key=lambda g: -g.count)[:_COMPARED]:
        found = _compared(graph.keys, base)
        if found is not None and not _variant(found, graph):
            return found
    return None


def _variant(found: Damage, graph: Graph) -> bool:
    """Whether it is rather the graph of other batches: that of one row and that of several may differ a little."""
    return found.kind in ("block", "twice") and found.count <= _DIFFER and not graph.batches & found.base.batches


def _compared(keys: Ints, base: Graph) -> Damage | None:
    size, whole = len(keys), len(base.keys)
    front = _agree(keys, base.keys)
    if front == size < whole:
        return Damage("end", base, whole - size)
    back = _agree(keys[::-1], base.keys[::-1])
    if back == size < whole:
        return Damage("beginning", base, whole - size)
    if size < whole and front > 0 and front + back >= size:
        return Damage("block", base, whole - size)
    more = size - whole
    if 0 < more <= front and front + back >= whole and (keys[front - more : front] == keys[front : front + more]).all():
        return Damage("twice", base, more)
    return None


def _agree(one: Ints, other: Ints) -> int:
    """Return how many values at the front are the same in both."""
    size = min(len(one), len(other))
    same = one[:size] == other[:size]
    return size if same.all() else int(np.argmin(same))


@dataclass(frozen=True, slots=True)
class _Odd:
    """A pass that seems damaged."""

    damage: Damage
    row: int
    step: int
    at_end: bool

    def is_part(self, widths: Sequence[int]) -> bool:
        """Whether it is a part of a prompt of which no output is wanted: nothing is lost then.

        The last layer's end and the output head are missing, and the prompt goes on in the next pass.
        """
        base, following = self.damage.base, widths[self.step + 1 : self.step + 2]
        last = int(np.argmax(base.layer == base.highest))
        in_last = self.damage.kind == "end" and len(base.keys) - self.damage.count > last
        return in_last and base.output >= 0 and widths[self.step] > 1 and max(following, default=1) > 1


@dataclass(slots=True)
class Doubts:
    """What does not fit, collected while passes are found.

    Attributes:
        odd: damaged passes by their sequence, None where it turned out to be a graph of its own.
        unclear: rows of passes of which it is not clear where they end; endless: of such without an end.
        phaseless: passes of several rows that may be a prompt or not.
        opening: the first pass of the log, if it seems to lack its beginning.
    """

    odd: dict[bytes, _Odd | None] = field(default_factory=dict)
    runs: list[tuple[int, str]] = field(default_factory=list)
    models: list[tuple[int, int, int]] = field(default_factory=list)
    switches: int = 0
    unclear: list[int] = field(default_factory=list)
    endless: list[int] = field(default_factory=list)
    phaseless: int = 0
    opening: Graph | None = None
    _cut: _Odd | None = None
    _run_began: int = 0
    _model: tuple[int, int, int] | None = None

    def add(self, found: Damage, graph: Graph, *, at_end: bool) -> bool:
        """Note a damaged pass; return whether the same came before: then it is no damage."""
        name = graph.keys.tobytes()
        if name in self.odd:
            self.odd[name] = None
            return True
        self._cut = self.odd[name] = _Odd(found, graph.first, graph.step, at_end)
        return False

    def joins(self, found: Damage) -> bool:
        """Whether a pass without its beginning goes on with the one before, which lacks its end.

        A block was repeated between them, or lines are missing around a border: the smaller loss is likelier.
        """
        cut = self._cut
        if cut is None or found.kind != "beginning" or cut.damage.kind != "end" or found.base is not cut.damage.base:
            return False
        whole = len(found.base.keys)
        twice = whole - found.count - cut.damage.count
        if not 0 < twice <= whole // 2:
            return False
        self.odd[next(k for k, v in self.odd.items() if v is cut)] = _Odd(
            Damage("twice", found.base, twice), cut.row, cut.step, at_end=False
        )
        self._cut = None
        return True

    def begins_run(self, graph: Graph, step: int, tokens: int, before: int) -> bool:
        """Whether a run that was appended to the log begins with this pass.

        So it is where a decode step breaks off and a prompt follows, and where another model comes late.

        Args:
            graph: of the pass; step: how many passes came before it in the log.
            tokens: its batch; before: the batch of the pass before it.
        """
        cut = self._cut
        own = cut is not None and cut.step == step
        self._cut = cut if own else None
        if not own and self._another_model(graph, step):
            self.runs.append((graph.first, f"another model begins (of {graph.hidden} columns)"))
        elif not own and cut is not None and cut.damage.kind == "end" and before == 1 and tokens > _SHORT:
            size = f"{len(cut.damage.base.keys) - cut.damage.count} of {len(cut.damage.base.keys)} operations"
            self.runs.append((cut.row, f"step {cut.step} breaks off after {size} and a prompt begins"))
            self.odd = {keys: odd for keys, odd in self.odd.items() if odd is not cut}
        else:
            return False
        self._run_began = step
        return True

    def _another_model(self, graph: Graph, step: int) -> bool:
        """Note the pass's model; return whether it is new and so late that it cannot be a draft model."""
        if graph.hidden <= 0 or graph.model == self._model:
            return False
        self.switches += self._model is not None
        self._model = graph.model
        if graph.model in self.models:
            return False
        new = graph.hidden not in [hidden for _, _, hidden in self.models]
        late = bool(self.models) and step - self._run_began >= _SETTLED
        self.models.append(graph.model)
        return new and late

    def findings(self, graphs: Sequence[Graph], widths: Sequence[int], places: Sequence[int]) -> Iterator[Finding]:
        """Tell what does not fit.

        Args:
            graphs: all that were found; widths: the batch of each pass; places: its first row, from 0.
        """
        odd = [*(o for o in self.odd.values() if o is not None), *self._late(graphs)]
        odd = sorted((o for o in odd if not o.is_part(widths)), key=lambda o: o.row)
        once = sum(g.count == 1 for g in graphs)
        if self.endless:
            what = "operations in which no step can be told from the next: do several processes print into this log?"
            yield Finding("fault", "unclear-steps", what, len(self.endless), self.endless[0] + 1)
        elif len(odd) + once > max(2 + once, _UNCLEAR_PART * len(widths)) or (once > 4 and 2 * once > len(widths)):
            what = "passes differ from one another: do several processes print into this log? Steps are not certain"
            yield Finding("note", "unclear-steps", what, len(odd) + once)
        else:
            yield from map(_told, odd)
        for row, what in self.runs:
            what = f"{what}: a run was appended to this log, or lines are missing"
            yield Finding("fault", "appended-runs", what, len(self.runs) + 1, row + 1)
        if not self.runs:
            yield from _prompts(np.array(widths), places)
        yield from self._notes(graphs, widths)

    def _late(self, graphs: Sequence[Graph]) -> Iterator[_Odd]:
        """Compare passes that came once with graphs that were known only later."""
        common = [g for g in graphs if g.count > 1] or list(graphs)
        opening = [self.opening] if self.opening is not None and self.opening.count == 1 else []
        for graph in [*opening, *(g for g in graphs if g.count == 1)]:
            found = damage(graph, [g for g in common if g is not graph and g.first > graph.first])
            if found is not None:
                yield _Odd(found, graph.first, graph.step, at_end=False)

    def _notes(self, graphs: Sequence[Graph], widths: Sequence[int]) -> Iterator[Finding]:
        models = sorted({g.model for g in graphs if g.count > 1 and g.hidden > 0}, key=lambda m: m[0] - m[1])
        if len(models) > 1 and not self.runs:
            names = " and ".join(f"layers {low} to {high} ({columns} columns)" for low, high, columns in models[:3])
            code = "draft-model" if self.switches > 2 else "two-models"
            who = "a draft model works beside the model" if self.switches > 2 else "two runs, or a draft model"
            yield Finding("note", code, f"{who}: passes of {names}; all are numbered as steps", len(models))
        gaps = [g for g in graphs if g.gaps]
        if gaps:
            what = "steps whose layers are not consecutive: do two models' passes look like one?"
            yield Finding("note", "unclear-steps", what, sum(g.count for g in gaps), gaps[0].first + 1)
        if self.unclear:
            what = "steps of which it is not certain where they end: nothing tells what stands between two layers' ends"
            yield Finding("note", "unclear-steps", what, len(self.unclear), self.unclear[0] + 1)
        if self.phaseless:
            what = "steps of several rows that may be a short prompt, speculation or several sequences: phase not known"
            yield Finding("note", "unclear-phase", what, self.phaseless)


def _told(odd: _Odd) -> Finding:
    """Put a damaged pass into words."""
    found, whole = odd.damage, len(odd.damage.base.keys)
    size = f"{whole - found.count} of {whole} operations"
    if odd.at_end and found.kind == "end":
        return Finding("fault", "cut-step", f"the log ends within a step: {size}", 1, odd.row + 1)
    if odd.row == 0 and found.kind == "beginning":
        return Finding("fault", "cut-step", f"the log begins within a step: {size}", 1, 1)
    if found.kind == "twice":
        what = f"step {odd.step} has {found.count} operations twice (or lines around it are missing)"
    else:
        where = {"end": "at its end", "beginning": "at its beginning", "block": "within it"}[found.kind]
        what = f"step {odd.step} lacks {found.count} of {whole} operations {where} (or some around it stand twice)"
    return Finding("fault", "odd-step", what, 1, odd.row + 1)


def _prompts(widths: Ints, places: Sequence[int]) -> Iterator[Finding]:
    """Tell of a prompt after decoding: another request, or a run that was appended to the log."""
    again = np.flatnonzero((widths[1:] > _SHORT) & (widths[:-1] == 1)) + 1
    if not len(again):
        return
    first = int(again[0])
    if len(widths) % first == 0 and (widths.reshape(-1, first) == widths[:first]).all():
        times = len(widths) // first
        what = f"the same {first} batches stand {times} times in the log: runs that were appended to one another?"
        yield Finding("fault", "appended-runs", what, times, places[first] + 1)
    else:
        what = "prompts after decoding: further requests, or a run that was appended to the log"
        yield Finding("note", "prompt-again", what, len(again), places[first] + 1)
