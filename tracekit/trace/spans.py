"""Steps and layers: slices around runs of trees that belong together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.trace.source import Bools, Ints, column, runs
from tracekit.trace.trees import Forest, depths, first_rows


@dataclass(slots=True)
class Span:
    """Runs of trees: the first and the last outermost row of each."""

    first: Ints
    last: Ints


def steps_and_layers(frame: pl.DataFrame, order: Ints, trees: Forest, track: Ints, main: Bools) -> tuple[Span, Span]:
    """Return the steps, and the layers: runs of neighbours with one layer among trees of a single row.

    Args:
        frame: the events.
        order: row of the frame per row of `trees`.
        trees: the rows by track and time.
        track: their tracks; main: whether that is a main track, the only ones with steps and layers.
    """
    roots = trees.roots
    own_track = track[roots]
    run, step, layer = (column(frame, c)[order[roots]] for c in ("run", "step", "layer"))
    single = first_rows(trees.depth)[roots] == roots
    step = np.where(main[roots], _bridged(own_track, run, step), -1)
    layer = np.where(main[roots] & single, layer, -1)
    return (
        _runs_of(roots, step >= 0, own_track, run, step),
        _runs_of(roots, layer >= 0, own_track, run, step, layer),
    )


def _runs_of(roots: Ints, known: Bools, *keys: Ints) -> Span:
    first = runs(*keys)
    last = np.append(first[1:], len(roots)) - 1
    wanted = known[first]
    return Span(roots[first[wanted]], roots[last[wanted]])


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
    """A forest with spans put around its trees.

    Attributes:
        forest: all rows, spans included, children before their parents.
        places: where the rows of the old forest stand, then where those of each span stand.
    """

    forest: Forest
    places: Sequence[Ints]

    def spread(self, *values: Ints) -> Ints:
        """Return one array from the values of the rows and those of each span."""
        spread = np.empty(len(self.forest.parent), np.int64)
        for place, value in zip(self.places, values, strict=True):
            spread[place] = value
        return spread


def enclose(trees: Forest, spans: Sequence[Span]) -> Enclosed:
    """Put spans around trees, the innermost kind first; spans of one kind are apart and in order."""
    count = len(trees.parent)
    closing = [np.bincount(s.last, minlength=count) for s in spans]
    closings = np.sum(closing, axis=0)
    place = np.arange(count) + np.cumsum(closings) - closings
    places = [place]
    for n, span in enumerate(spans):
        places.append(place[span.last] + 1 + np.sum([c[span.last] for c in closing[:n]], axis=0, dtype=np.int64))
    parent = np.full(count + int(closings.sum()), -1, np.int64)
    inside = trees.parent >= 0
    parent[place[inside]] = place[trees.parent[inside]]
    for n, span in reversed(list(enumerate(spans))):
        for rows, where in [(trees.roots, place[trees.roots])] + [
            (inner.last, places[k + 1]) for k, inner in enumerate(spans[:n])
        ]:
            holder = _holders(span, places[n + 1], rows)
            parent[where] = np.where(holder >= 0, holder, parent[where])
    return Enclosed(Forest(depths(parent), parent), places)


def _holders(span: Span, place: Ints, rows: Ints) -> Ints:
    """Return the place of the span that holds each outermost row, -1 if none."""
    if not len(place):
        return np.full(len(rows), -1, np.int64)
    before = np.searchsorted(span.first, rows, side="right") - 1
    held = (before >= 0) & (rows <= span.last[before])
    return np.where(held, place[before], -1)
