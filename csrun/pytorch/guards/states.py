"""Numbered states of the values that forward reads; a step in a new state is recorded again."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import chain, repeat
from operator import is_
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.guards.loads import line_of_load, line_of_store
from csrun.pytorch.guards.sources import GuardSource, SourceKind, SourceSearch
from csrun.pytorch.step.mutation_counters import ModuleSets

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_UNKNOWN = object()  # value of a source that was found after the state


class Guards:
    """Guards on a model's forward, across recordings.

    A state is the values of all sources, except those that forward itself writes.

    changed: name of the source in which the latest new state differs.
    cause: reason, with its line, why forward may compute something else in each step, such as a
        counter; empty without one.
    """

    def __init__(
        self, model: torch.nn.Module, forward: Callable[..., Any], sets: ModuleSets
    ) -> None:
        self._model, self._forward, self._sets = model, forward, sets
        self._sources: dict[tuple[int, Any], GuardSource] = {}
        self._states: list[dict[GuardSource, Any]] = [{}]
        self._written: set[GuardSource] = set()  # by forward
        self._left: dict[tuple[Any, ...], Any] = {}
        self._codes: list[Any] = []
        self._collected: set[int] = set()
        self._number = 0
        self._count = -1
        self._fast = _IdentityCheck([])
        self.changed = self.cause = ""
        self.forward = self._wrap_forward(forward)

    def state(self) -> int:
        """Return the number of the current state; a new number for a new state."""
        if self._count == self._sets.count and self._fast.is_same():
            return self._number
        self._count = self._sets.count
        self._number = self._find_state()
        self._fast.accept()
        return self._number

    def take_cause(self) -> str:
        """Return the cause, which is then cleared."""
        cause, self.cause = self.cause, ""
        return cause

    def _find_state(self) -> int:
        watched = [s for s in self._sources.values() if s not in self._written]
        now = {source: source.now() for source in watched}
        order: list[int] = [self._number, *range(len(self._states))]
        for number in order:
            if self._difference(number, now) is None:
                return number
        self.changed = self._difference(self._number, now) or ""
        self._states.append(now)
        return len(self._states) - 1

    def _difference(self, number: int, now: dict[GuardSource, Any]) -> str | None:
        state = self._states[number]
        for source, value in now.items():
            if not _is_same(state.get(source, _UNKNOWN), value):
                return source.name
        return None

    # Checks around a run of forward.

    def _wrap_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._collect()
            before = {source: source.now() for source in self._sources.values()}
            with self._draws_noted():
                found = call_for_user(forward, args, kwargs)
            self._exclude_written(before, _signature(self._model, args, kwargs))
            return found

        return run

    def _collect(self) -> None:
        """Search for sources once in each new state."""
        number = self.state()
        if number in self._collected:
            return
        self._collected.add(number)
        search = SourceSearch(self._model, self._forward)
        self._codes = list(search.codes)
        state = self._states[number]
        for source in search.sources():
            if (id(source.owner), source.key) not in self._sources:
                self._sources[id(source.owner), source.key] = source
                state[source] = source.now()
        self._rebuild_check()

    def _rebuild_check(self) -> None:
        each_step = [
            s for s in self._sources.values() if s not in self._written and not s.is_of_module
        ]
        self._fast = _IdentityCheck(each_step)

    def _exclude_written(self, before: dict[GuardSource, Any], signature: Any) -> None:
        """Exclude sources that forward has written, and note one that differs after each run."""
        for source, was in before.items():
            now = source.now()
            if _is_same(was, now):
                continue
            if source not in self._written:
                self._written.add(source)
                self._rebuild_check()
            left = self._left.setdefault((source, signature), now)
            if left is not now and _is_plain(now) and not _is_same(left, now):
                self.cause = f"{self._line_of(source)}: forward changes {source.name}"
        self._fast.accept()

    def _line_of(self, source: GuardSource) -> str:
        name = source.name.rpartition(".")[2].partition("[")[0]
        lines = (line_of_store(code, name) or line_of_load(code, name) for code in self._codes)
        return next(filter(None, lines), user_line())

    @contextmanager
    def _draws_noted(self) -> Iterator[None]:
        """Note if forward draws numbers from Python's or NumPy's generator."""
        python, numpy = random.getstate(), np.random.get_state()
        yield
        name = "random" if random.getstate() != python else ""
        if not _is_same_generator(numpy, np.random.get_state()):
            name = "numpy.random"
        if name:
            lines = (line_of_load(code, "random") for code in self._codes)
            line = next(filter(None, lines), self._first_line())
            self.cause = f"{line}: forward draws numbers from {name}"

    def _first_line(self) -> str:
        code = getattr(type(self._model).forward, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else user_line()


def _is_same_generator(one: Any, other: Any) -> bool:
    """Return whether two states of NumPy's global generator are equal."""
    return one[2:] == other[2:] and np.array_equal(one[1], other[1])


class _IdentityCheck:
    """Fast check of sources by identity with the values accepted last, about 0.05 us per value."""

    def __init__(self, sources: list[GuardSource]) -> None:
        keys = [s for s in sources if s.kind is SourceKind.KEY]
        self._dicts, self._keys = [s.owner for s in keys], [s.key for s in keys]
        attributes = [s for s in sources if s.kind is SourceKind.ATTRIBUTE]
        self._owners, self._names = [s.owner for s in attributes], [s.key for s in attributes]
        self._containers = [s.owner for s in sources if s.kind is SourceKind.ITEMS]
        self._mappings = [each for each in self._containers if isinstance(each, dict)]
        self.accept()

    def _now(self) -> list[Any]:
        now = [*map(dict.get, self._dicts, self._keys)]
        if self._owners:
            now += map(getattr, self._owners, self._names, repeat(None))
        if self._containers:
            now += map(len, self._containers)
            now += chain.from_iterable(self._containers)
            now += chain.from_iterable(map(dict.values, self._mappings))
        return now

    def accept(self) -> None:
        """Accept the current values."""
        self._seen = self._now()

    def is_same(self) -> bool:
        """True if all values are the accepted ones."""
        now = self._now()
        return len(now) == len(self._seen) and all(map(is_, now, self._seen))


def _is_same(one: Any, other: Any) -> bool:
    if one is other or one is _UNKNOWN:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, _PLAIN) and one == other


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else isinstance(value, _PLAIN)


def _signature(model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    shapes = [tuple(x.shape) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    return tuple(shapes), model.training
