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

    _busy: list[tuple[int, int]] = field(default_factory=list)  # (end, lane), a heap
    _idle: list[int] = field(default_factory=list)  # lanes that were left, a heap
    _latest: int = 0  # the latest end so far
    _known: int = 0

    def take(self, start: Ints, end: Ints) -> Ints:
        """Return the lane of each slice: the lowest that is free. Slices come sorted by start."""
        lanes = np.zeros(len(start), np.int64)
        before = np.maximum.accumulate(np.append(self._latest, end[:-1]))
        if self._known <= 1 and (start >= before).all():
            self._latest = int(max(before[-1], end[-1]))
            self._known, self._busy, self._idle = 1, [(self._latest, 0)], []
            return lanes
        # Which lane is free depends on every slice before it, so this is a loop; only overlapping logs come here.
        for n, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            while self._busy and self._busy[0][0] <= begins:
                heapq.heappush(self._idle, heapq.heappop(self._busy)[1])
            if self._idle:
                lane = heapq.heappop(self._idle)
            else:
                lane, self._known = self._known, self._known + 1
            heapq.heappush(self._busy, (ends, lane))
            lanes[n] = lane
        self._latest = max(self._latest, int(end.max()))
        return lanes
