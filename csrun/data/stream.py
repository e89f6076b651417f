"""An iterable of batches: it can only be read from its start, in turn."""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from csrun.data.errors import DataError, require
from csrun.data.indexed import Batch, as_batch

log = logging.getLogger("csrun")


class Stream:
    """Batches of an iterable. A look at the first one does not take it away from who reads next."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable
        self._name = type(iterable).__name__
        self._opened: Iterator[Batch] | None = None
        self._exhaustible = iter(iterable) is iterable if isinstance(iterable, Iterator) else False
        self._used = False
        self._warned = False

    def first(self) -> Batch:
        """The first batch.

        Raises: DataError when there is none.
        """
        iterator = self._take()
        batch = next(iterator, None)
        require(batch is not None, "input_fn", "the data set must not be empty", self._name)
        assert batch is not None
        self._opened = chain([batch], iterator)
        return batch

    def read(self, start: int, stride: int) -> Iterator[Batch]:
        """Batches start, start + stride, …; all others are produced and thrown away."""
        if (start or stride > 1) and not self._warned:
            self._warned = True
            log.warning(
                "input_fn gave a %s, which cannot be indexed: the batches before and between those "
                "wanted are produced and thrown away; this does not scale; return a "
                "csrun.data.Dataset instead",
                self._name,
            )
        return islice(self._take(), start, None, stride)

    def _take(self) -> Iterator[Batch]:
        opened, self._opened = self._opened, None
        if opened is not None:
            return opened
        if self._exhaustible and self._used:
            raise DataError(
                f"input_fn: the {self._name} has been read already and cannot start again; "
                "return a new one at each call"
            )
        self._used = True
        return map(as_batch, self._iterable)
