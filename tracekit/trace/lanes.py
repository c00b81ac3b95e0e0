"""Lanes: as few tracks as needed so that no two slices on one overlap."""

import heapq
from dataclasses import dataclass, field

import numpy as np

from tracekit.trace.source import Ints


@dataclass(slots=True)
class Lanes:
    """The lanes of one track and when each is free.

    >>> Lanes().take(np.array([0, 2, 5]), np.array([4, 9, 6]))
    array([0, 1, 0])
    """

    _ends: list[int] = field(default_factory=list)  # per lane, when it is free

    def take(self, start: Ints, end: Ints) -> Ints:
        """Return the lane of each slice: the lowest that is free. Slices come sorted by start."""
        lanes = np.zeros(len(start), np.int64)
        if not len(start):
            return lanes
        before = np.maximum.accumulate(np.append(self._ends[0] if self._ends else 0, end[:-1]))
        if len(self._ends) <= 1 and (start >= before).all():
            self._ends = [int(max(before[-1], end[-1]))]
            return lanes
        # Which lane is free depends on every slice before it, so this is a loop; only overlapping logs come here.
        busy = [(free, lane) for lane, free in enumerate(self._ends)]
        heapq.heapify(busy)
        idle: list[int] = []
        for n, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            while busy and busy[0][0] <= begins:
                heapq.heappush(idle, heapq.heappop(busy)[1])
            if idle:
                lane = heapq.heappop(idle)
                self._ends[lane] = ends
            else:
                lane = len(self._ends)
                self._ends.append(ends)
            heapq.heappush(busy, (ends, lane))
            lanes[n] = lane
        return lanes
