"""Weights that a script changes between the steps of a training."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from csrun.base.errors import UsageError
from csrun.executable.arrays import Array
from csrun.runtime.chief.machine import Machine


class WeightWrites:
    """Changes of a machine's weights since the last step.

    A write belongs to the next step: a checkpoint of the last step has the values before it. A
    replacement belongs to the last step, whose next checkpoint has the new values.

    replaced: replacements that the machine could not take over.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._before: Mapping[str, Array] = {}  # values before the writes since the last step
        self.replaced: dict[str, Array] = {}

    def write(self, values: Mapping[str, Array]) -> None:
        """Write weights by name, on a machine that accepts writes."""
        found = {name: np.array(self._machine.state[name]) for name in values}
        self._before = {**found, **self._before}
        self._assign(values)

    def replace(self, values: Mapping[str, Array]) -> None:
        """Replace weights by name; if the machine accepts no writes, only for a checkpoint."""
        if self._machine.has_writable_state:
            self._assign(values)
        else:
            self.replaced |= values

    def end_step(self) -> None:
        """Take the writes into the state after a step."""
        self._before = {}

    def require_applied(self, step: int) -> None:
        """Raises: UsageError if the machine could not take over weights that were replaced"""
        if self.replaced:
            raise UsageError(
                f"{min(self.replaced)} was changed after step {step}; this needs a weight "
                "store in the memory of the chief's machine and, in pipelined mode, one CS system: "
                "raise weight_store_memory, use one node or system, or leave the weight unchanged"
            )

    @contextmanager
    def undone(self, wait: Callable[[], None]) -> Iterator[None]:
        """Undo the writes in the block; `wait` ends the use of the state."""
        if not self._before:
            yield
            return
        written = {name: np.array(self._machine.state[name]) for name in self._before}
        self._assign(self._before)
        try:
            yield
            wait()
        finally:
            self._assign(written)

    def _assign(self, values: Mapping[str, Array]) -> None:
        for name, value in values.items():
            self._machine.state[name][...] = value
        self._machine.written()
