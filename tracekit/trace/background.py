"""Writing in a thread of its own: pieces are encoded while the next ones are read and placed."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np
import numpy.typing as npt

from tracekit.trace.slices import Slices
from tracekit.trace.source import Ints
from tracekit.trace.timeline import TimelineWriter

#: Pieces that may wait to be written: more would only take memory.
_WAITING = 3


class BackgroundWriter:
    """Hands everything to another writer, in order, in one thread. What fails there is raised here, a little later."""

    def __init__(self, writer: TimelineWriter) -> None:
        self._writer = writer
        self._pool = ThreadPoolExecutor(1, "trace")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> "BackgroundWriter":
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread; what still waits after an error is not written."""
        self._pool.shutdown(cancel_futures=True)

    def process(self, ordinal: int, name: str, labels: Sequence[str]) -> None:
        """See `TimelineWriter`."""
        self._later(lambda: self._writer.process(ordinal, name, labels))

    def track(self, track: int, *, process: int, name: str, rank: int, unit: str | None = None) -> None:
        """See `TimelineWriter`."""
        self._later(lambda: self._writer.track(track, process=process, name=name, rank=rank, unit=unit))

    def slices(self, slices: Slices) -> None:
        """See `TimelineWriter`."""
        self._later(lambda: self._writer.slices(slices))

    def counter(self, track: int, times_ns: Ints, values: npt.NDArray[np.float64]) -> None:
        """See `TimelineWriter`."""
        self._later(lambda: self._writer.counter(track, times_ns, values))

    def about(self, track: int, title: str, details: dict[str, str]) -> None:
        """See `TimelineWriter`."""
        self._later(lambda: self._writer.about(track, title, details))

    def close(self) -> None:
        """Write what ends the file, and wait for all of it."""
        self._later(self._writer.close)
        while self._waiting:
            self._waiting.popleft().result()

    def _later(self, work: Callable[[], None]) -> None:
        while len(self._waiting) >= _WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(work))
