"""Steps and layers: slices around runs of trees that belong together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.trace.source import Bools, Ints, column, runs
from tracekit.trace.trees import Forest, first_rows, tree_of


@dataclass(slots=True)
class Span:
    """Runs of trees.

    Attributes:
        first, last: the first and the last outermost row of each run.
        of_tree: number of the run that each tree stands in, -1 for none.
    """

    first: Ints
    last: Ints
    of_tree: Ints


def steps_and_layers(frame: pl.DataFrame, trees: Forest, track: Ints, main: Bools) -> tuple[Span, Span]:
    """Return the steps, and the layers: runs of neighbours with one layer among trees of a single row.

    Args:
        frame: the events, by track and time; trees: how they nest.
        track: their tracks; main: whether that is a main track, the only ones with steps and layers.
    """
    roots = trees.roots
    own_track, own_main = track[roots], main[roots]
    run, step, layer = (column(frame, c)[roots] for c in ("run", "step", "layer"))
    step = np.where(own_main, _bridged(own_track, run, step), -1)
    if len(roots) < len(track):
        own_main = own_main & (first_rows(trees.depth)[roots] == roots)
    layer = np.where(own_main, layer, -1)
    return (
        _runs_of(roots, step >= 0, own_track, run, step),
        _runs_of(roots, layer >= 0, own_track, run, step, layer),
    )


def _runs_of(roots: Ints, known: Bools, *keys: Ints) -> Span:
    first = runs(*keys)
    bounds = np.append(first, len(roots))
    wanted = known[first]
    number = np.where(wanted, np.cumsum(wanted) - 1, -1)
    return Span(roots[first[wanted]], roots[bounds[1:][wanted] - 1], np.repeat(number, np.diff(bounds)))


def _bridged(track: Ints, run: Ints, step: Ints) -> Ints:
    """Give trees without a step the step around them, where before and after it is the same one."""
    if (step >= 0).all() or (step < 0).all():
        return step
    known = np.flatnonzero(step >= 0)
    places = np.arange(len(step))
    after = known[np.minimum(np.searchsorted(known, places), len(known) - 1)]
    before = known[np.maximum(np.searchsorted(known, places, side="right") - 1, 0)]
    same = (step[after] == step[before]) & (run[after] == run[before]) & (track[after] == track[before])
    return np.where(same & (before <= places) & (places <= after), step[before], step)


@dataclass(slots=True)
class Enclosed:
    """Rows with spans put around their trees.

    Attributes:
        depth: of all rows, spans included, children before their parents.
        places: where the old rows stand, then where those of each kind of span stand.
    """

    depth: Ints
    places: Sequence[Ints]

    def spread(self, *values: Ints) -> Ints:
        """Return one array from the values of the rows and those of each kind of span."""
        spread = np.empty(len(self.depth), np.int64)
        for place, value in zip(self.places, values, strict=True):
            spread[place] = value
        return spread


def enclose(trees: Forest, spans: Sequence[Span]) -> Enclosed:
    """Put spans around trees, the innermost kind first; a span of an inner kind lies within one of an outer kind."""
    count = len(trees.parent)
    closings = np.zeros(count, np.int64)
    behind = []  # per kind, how many spans of inner kinds close at the row that closes it
    for span in spans:
        behind.append(closings[span.last])
        closings[span.last] += 1
    place = np.arange(count) + np.cumsum(closings) - closings
    places = [place, *(place[s.last] + 1 + n for s, n in zip(spans, behind, strict=True))]
    held = np.sum([s.of_tree >= 0 for s in spans], axis=0)
    depth = np.empty(count + int(closings.sum()), np.int64)
    depth[place] = trees.depth + (held if len(held) == count else held[tree_of(trees)])
    for n, span in enumerate(spans):
        depth[places[n + 1]] = np.sum(
            [s.of_tree[np.searchsorted(trees.roots, span.last)] >= 0 for s in spans[n + 1 :]], axis=0
        )
    return Enclosed(depth, places)
