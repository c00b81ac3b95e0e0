"""Trees of nested rows, held as columns: children stand before their parent, each row knows its depth."""

from dataclasses import dataclass

import numpy as np

from tracekit.trace.source import Bools, Ints, runs


@dataclass(slots=True)
class Forest:
    """Rows in order of completion and what follows from their depths.

    Attributes:
        depth: nesting, 0 is outermost; a row's parent is the next row that is one less deep.
        parent: row of the parent, -1 for outermost rows.
    """

    depth: Ints
    parent: Ints

    @property
    def roots(self) -> Ints:
        """The outermost rows, each behind its whole tree."""
        return np.flatnonzero(self.parent < 0)


def forest(depth: Ints, strand: Ints) -> Forest:
    """Find parents. A row whose parent is missing is outermost, and what stands in it goes with it."""
    parent = np.full(len(depth), -1, np.int64)  # filled level by level
    deepest = int(depth.max(initial=0))
    for level in range(1, deepest + 1):
        rows = np.flatnonzero(depth == level)
        holders = np.flatnonzero(depth < level)
        behind = np.searchsorted(holders, rows)
        found = behind < len(holders)
        holder = holders[np.minimum(behind, len(holders) - 1)] if len(holders) else rows
        found &= (depth[holder] == level - 1) & (strand[holder] == strand[rows])
        parent[rows[found]] = holder[found]
    return Forest(depths(parent) if deepest else depth, parent)


def depths(parent: Ints) -> Ints:
    """Return the depth of each row; parents stand behind their children."""
    depth = np.zeros(len(parent), np.int64)
    inside = np.flatnonzero(parent >= 0)
    while len(inside):
        deeper = depth[parent[inside]] + 1
        if (deeper == depth[inside]).all():
            break
        depth[inside] = deeper
    return depth


def first_rows(depth: Ints) -> Ints:
    """Return the row at which the tree that each row closes begins.

    >>> first_rows(np.array([1, 2, 1, 0, 0]))
    array([0, 1, 1, 0, 4])
    """
    places = np.arange(len(depth))
    first = places.copy()
    for level in range(int(depth.max(initial=0))):
        outside = np.maximum.accumulate(np.where(depth <= level, places, -1))
        rows = np.flatnonzero(depth == level)
        first[rows] = np.where(rows > 0, outside[rows - 1], -1) + 1
    return first


def brackets(depth: Ints) -> tuple[Ints, Ints]:
    """Return where each row opens and closes when all rows are written as nested brackets.

    Structure alone decides, so equal times and zero durations cannot change the order.

    >>> brackets(np.array([1, 1, 0]))
    (array([1, 3, 0]), array([2, 4, 5]))
    """
    places = np.arange(len(depth))
    return 2 * first_rows(depth) + depth, 2 * places + 1 + depth


def tree_of(forest: Forest) -> Ints:
    """Return the number of each row's tree, counted along the outermost rows."""
    top = np.arange(len(forest.parent))
    if len(forest.roots) == len(top):
        return top
    while True:
        higher = forest.parent[top]
        inside = higher >= 0
        if not inside.any():
            return np.searchsorted(forest.roots, top)
        top = np.where(inside, higher, top)


def reordered(forest: Forest, order: Ints) -> Forest:
    """Return the forest with its rows in another order: row i is the former row ``order[i]``."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    parent = forest.parent[order]
    return Forest(forest.depth[order], np.where(parent >= 0, place[parent], -1))


def without(forest: Forest, keep: Bools) -> Forest:
    """Return the forest of the rows kept; a row's parent is its nearest ancestor that is kept."""
    parent = forest.parent
    lifted = parent.copy()
    gone = np.flatnonzero((lifted >= 0) & ~keep[lifted])
    while len(gone):
        lifted[gone] = parent[lifted[gone]]
        gone = gone[(lifted[gone] >= 0) & ~keep[lifted[gone]]]
    renumbered = np.cumsum(keep) - 1
    parent = np.where(lifted >= 0, renumbered[lifted], -1)[keep]
    return Forest(depths(parent), parent)


def inside_parents(forest: Forest, start: Ints, dur: Ints, ends: Ints | None) -> Ints:
    """Place the rows inside their parents: in order, without overlap, near their own ends where those are known.

    Args:
        forest: the rows.
        start: start per row, filled in for outermost rows; the rest is written here.
        dur: duration per row.
        ends: when each row ended as far as is known, on the same axis as `start` before trees were moved.

    Returns:
        The rows that do not fit: children whose durations exceed what is left of their parent (rounding).
    """
    misfits = []
    for level in range(1, int(forest.depth.max(initial=0)) + 1):
        rows = np.flatnonzero(forest.depth == level)
        parent = forest.parent[rows]
        first = runs(parent)
        count = np.diff(np.append(first, len(rows)))
        upto = np.cumsum(dur[rows])
        before = np.repeat(upto[first] - dur[rows[first]], count)
        packed_end = upto - before
        if ends is None:
            end = packed_end
        else:
            end = _near(ends[rows] - (ends[parent] - dur[parent]), packed_end, dur[parent], first, count)
        start[rows] = start[parent] + end - dur[rows]
        misfits.append(rows[end > dur[parent]])
    return np.concatenate(misfits) if misfits else np.zeros(0, np.int64)


def _near(wished: Ints, packed: Ints, room: Ints, first: Ints, count: Ints) -> Ints:
    """Return ends as near to those wished as order, durations and the parent's end allow.

    All relative to the parent's start. A sibling ends neither before the ones before it have fitted in, nor so late
    that the ones after it no longer fit.
    """
    slack = np.clip(wished - packed, 0, np.maximum(room, 0))
    # One running maximum serves all parents: each is lifted above the ones before it.
    group = np.repeat(np.arange(len(first)), count)
    lift = group * (int(slack.max(initial=0)) + 1)
    late = np.maximum.accumulate(slack + lift) - lift
    total = np.repeat(packed[first + count - 1], count)
    end: Ints = packed + np.minimum(late, np.maximum(room - total, 0))
    return end
