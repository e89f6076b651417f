"""Interface that a loop drives: programs of a run over one store, on a wafer or in this process.

A machine comes with its first program, and is given others by `load`. Each has buffers, batches and
results of its own; weights and optimizer state are one store, whose bytes all of them see. Any of
them may run when another has: between two orders nothing has to be said, and what streamers have
made for one lies in its ring until it runs again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from csrun.base.errors import CsrunError
from csrun.data import Dataset
from csrun.executable import Executable, Plan
from csrun.executable.arrays import Array, Batch
from csrun.records.tensor_files import Blocks
from csrun.runtime.input_log import Feeding
from csrun.runtime.step.results import StepResult
from csrun.runtime.step.trace import Spans
from csrun.runtime.wire.messages import Results, StepOrder, StepsDone


class StoreState(NamedTuple):
    """Tensors of a checkpoint and the numbers of the steps, wherever the store is.

    gradients: of the last step, as of `gradient_views`, where the store is mapped
    """

    tensors: dict[str, Array]
    numbers: Array | None
    gradients: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True)
class Feed:
    """Batches of a program's own: those of a data set from batch `first` on.

    number: of the data set among those that each of the job's streamers was given, in their order;
    dataset: the same one, in this process. last: the first batch that is not wanted, None for all.
    told: what the others must know of its order, if there is anything; for their `hear`. is_pushed:
    the chief makes them itself, by `push`, and of the data set none is read.
    """

    dataset: Dataset
    number: int = 0
    first: int = 0
    last: int | None = None
    told: bytes = b""
    is_pushed: bool = False


@dataclass(frozen=True)
class UpdateHold:
    """Updates that wait for what is copied of the state.

    order: in which tensors are to be copied. copied: so many more are; end: no more will be. sent:
    the tensors, where they come from another machine while steps run, and not from the state.
    """

    order: tuple[str, ...]
    copied: Callable[[int], None]
    end: Callable[[], None]
    sent: Mapping[str, Blocks] | None = None


class Ordered(Protocol):
    """Steps that were ordered, and may be under way."""

    @property
    def steps(self) -> StepOrder:
        """The order."""

    @property
    def is_done(self) -> bool:
        """Return whether `finish` will not wait."""

    def finish(self) -> StepsDone:
        """Wait until they are committed; to be called once, before all else of the machine.

        Raises: PeerLost when a peer of the run is lost
        """


class Program(Protocol):
    """One loaded Executable.

    plan: over the store that it shares; device: how log lines name it; feeding: who makes its
    batches. runs_apart: whether its steps are computed while this process does something else.
    """

    plan: Plan
    device: str
    feeding: Feeding
    runs_apart: bool

    def begin(self, first: int = 0, last: int | None = None, told: bytes = b"") -> None:
        """Set the next batch to number `first` of its data set; prefetched batches are discarded.

        told: what the streamers must know before they make it, such as a shuffled order.

        That is a new pass of an evaluation, whose end or middle the last one has reached. A program
        with the batches of another begins with that one.
        """

    def push(self, batch: Batch) -> None:
        """Give the batch of the next step to a program whose batches are pushed.

        One is pushed before each order of one step. Shapes: those of the plan's inputs

        Raises: CsrunError for a label or an index out of range
        """

    def run(self, steps: StepOrder) -> StepsDone:
        """Run up to `steps.count` ≤ `result_slots(plan)` steps; committed on return."""

    def order(self, steps: StepOrder) -> Ordered:
        """Start steps as by `run`, without waiting for them."""

    def result(self, slot: int, step: int) -> StepResult:
        """The result of its last call's step number `slot`."""

    def losses(self, count: int) -> list[float]:
        """Losses of its last call's first `count` steps."""

    def has_lost_peer(self) -> bool:
        """Return whether a part of the run is gone, so that there is no next step; at any time."""


class Machine(Program, Protocol):
    """A run with everything around it that a step needs; it is its first program, too.

    state: what a checkpoint holds, by name; it may be written before the first call of `run`, and
    read between calls, whichever program has run. takes_writes: it may be written between calls,
    too, if `written` is called then. numbers: those that come with each step, if there
    are any: float64[MOST_STEPS, numbers + 1], a step's row is its remainder; they are there before
    its order, and the last one, the norm of clipped gradients, after it. gradients: of the last
    step, if they are all there. arena_bytes: of the wafer,
    what the largest of its programs needs. plans: of the programs, by their numbers.
    """

    state: dict[str, Array]
    numbers: Array | None
    gradients: Mapping[str, Array]
    programming_time_s: float
    arena_bytes: int
    plans: list[Plan]

    @property
    def takes_writes(self) -> bool:
        """Return whether the state may be written between two calls of `run`."""

    def written(self) -> None:
        """Note that the state was written: what wafers have of it is old."""

    def load(self, executable: Executable, feed: Feed | Program) -> Program:
        """Load another program over the same store, between two calls of `run`.

        Its parameters are those of the first program by name, all of them or some. Its `feed` is of
        its own, and its first batch is made when this returns; or it is another program, whose next
        batch it takes when it runs, and computes on its first rows. That is how the last batch of a
        pass, which has fewer samples than the others, is a program of its own, and no order of the
        data is known twice.

        Raises: CsrunError for a program that the store does not fit, or that does not fit on the
            wafer next to the store
        """

    def unload(self, program: Program) -> None:
        """Let go of a program that does not run any more, between two calls of `run`.

        Its batches stay as long as another one takes them; the first program's store stays.
        """

    def initialize(self) -> None:
        """Give all of the state its first values, by the run's seed, where the store is.

        Once, before anything is written into it: zeros are taken to be there.
        """

    def hold_updates(self) -> UpdateHold:
        """Have updates wait for what is copied of the state, between two calls of `run`."""

    def traced(self, asks: bool = True) -> list[tuple[str, Spans]]:
        """Spans that each of its processes has traced, by its name.

        Where nobody may be asked, as one of them is lost, of those of this machine.
        """

    def close(self, results: Results) -> None:
        """End the run in all its parts, which return `results`."""


def over_store(owner: Plan, executable: Executable, sram_bytes: int | None) -> Executable:
    """The Executable over the store of a run, on a wafer of so many bytes (None: any number).

    Raises: CsrunError when the store does not fit it, or it does not fit on the wafer
    """
    return _fitting(executable.over(owner), sram_bytes)


def with_window(executable: Executable, nbytes: int, sram_bytes: int | None) -> Executable:
    """The Executable over its own store, with so many bytes for gradients, on such a wafer.

    Raises: CsrunError when it does not fit on the wafer
    """
    return _fitting(executable.with_window(nbytes), sram_bytes)


def _fitting(executable: Executable, sram_bytes: int | None) -> Executable:
    plan = executable.plan
    if sram_bytes is not None and plan.arena_bytes > sram_bytes:
        raise CsrunError(
            f"{plan.run_mode} program with batch_size {plan.batch_size} needs "
            f"{plan.arena_bytes:,} bytes on the wafer with the run's store, which has "
            f"{sram_bytes:,}: lower its batch_size, or start a separate run"
        )
    return executable
