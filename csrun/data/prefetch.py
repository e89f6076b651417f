"""prefetch: batches made ahead of their reader, on threads."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def prefetched(items: Iterator[T], ahead: int) -> Generator[T]:
    """Yield the same items, up to `ahead` of them produced in advance.

    One thread calls the iterator, so the order is preserved; its exceptions are raised here, with
    their traceback, in place of the item. The thread ends with this generator.
    """
    end = object()
    # iter(int, 1) never ends: the calls end with the items.
    calls = read_ahead(iter(int, 1), lambda _: next(items, end), 1, ahead)
    try:
        for item in calls:
            if item is end:
                return
            yield item  # type: ignore[misc]  # not the end, hence a T
    finally:
        calls.close()


def read_ahead(keys: Iterable[K], read: Callable[[K], T], threads: int, ahead: int) -> Generator[T]:
    """Yield `read(key)` for each key in order, called on several threads, up to `ahead` in advance.

    Its exceptions are raised here in place of the item. The threads end with this generator.
    """
    waiting = iter(keys)
    pending: deque[Future[T]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="input")
    try:
        pending.extend(pool.submit(read, key) for key in islice(waiting, ahead))
        while pending:
            item = pending.popleft().result()
            # Before the yield: the next read runs while the consumer works.
            pending.extend(pool.submit(read, key) for key in islice(waiting, 1))
            yield item
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
