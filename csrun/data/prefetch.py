"""Loads ahead of the reader on a thread of its own."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterator[T], ahead: int) -> Iterator[T]:
    """The same items, of which up to `ahead` are produced before they are asked for.

    One thread calls the iterator, so the order stays; what it raises comes out here, with its
    traceback, in the place of the item. The thread ends with this generator.
    """
    end = object()
    pending: deque[Future[T | object]] = deque()
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        for _ in range(ahead):
            pending.append(thread.submit(next, items, end))
        while (item := pending.popleft().result()) is not end:
            pending.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # not the end, hence a T
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
