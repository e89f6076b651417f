"""A compiled program with the memory it computes in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from csrun.executable import Executable, Plan, Runtime, StepState, wafer_views
from csrun.executable.arrays import Array, Batch, Bytes
from csrun.executable.store_places import AnyStore

Visit = Callable[[Batch, StepState], None]


@dataclass(frozen=True)
class PlacedProgram:
    """A program, the memory it computes in, and the runtime of its kernels.

    Shapes: arena uint8[plan.arena_bytes], store uint8[plan.store.nbytes]
    """

    executable: Executable
    arena: Bytes
    store: AnyStore
    runtime: Runtime

    @property
    def plan(self) -> Plan:
        return self.executable.plan

    def views(self, minibatch: int = 0) -> Mapping[str, Array]:
        """Return the arrays of a minibatch in flight, by name."""
        return wafer_views(self.plan, self.arena, self.store, minibatch)

    def visits(self, minibatch: int = 0) -> list[Visit]:
        """Return the functions of the visits of a minibatch in flight."""
        return self._bound(minibatch, is_added=False)

    def first_and_later_visits(self) -> tuple[list[Visit], list[Visit]]:
        """Return the visits of the first micro-batch or batch, and those of later ones, if any."""
        first = self.visits()
        # Without later batches the program is bound once; binding costs time and views.
        if self.plan.micro_batches == 1 and not self.plan.accumulates:
            return first, first
        return first, self._bound(0, is_added=True)

    def _bound(self, minibatch: int, is_added: bool) -> list[Visit]:
        bind = self.executable.wafer_program
        return bind(self.arena, self.store, self.runtime, minibatch, is_added).visits
