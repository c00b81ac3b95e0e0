"""Work that runs one step ahead, in a thread of its own (numpy and polars let threads run side by side)."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(items: Iterable[T], work: Callable[[T], R], waiting: int) -> Iterator[tuple[T, R]]:
    """Yield each item with what `work` made of it, in order; up to `waiting` items are taken before that is asked for.

    What `work` raises is raised here.

    >>> list(ahead([1, 2, 3], lambda n: n * n, waiting=2))
    [(1, 1), (2, 4), (3, 9)]
    """
    with ThreadPoolExecutor(1) as pool:
        begun: deque[tuple[T, Future[R]]] = deque()
        for item in items:
            begun.append((item, pool.submit(work, item)))
            if len(begun) > waiting:
                first, done = begun.popleft()
                yield first, done.result()
        for item, done in begun:
            yield item, done.result()
