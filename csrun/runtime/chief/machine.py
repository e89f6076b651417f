"""Interface of a loaded run: programs over one store, on a wafer or in this process.

A machine is created with its first program; `load` adds others. Each program has its own buffers,
batches and results. Weights and optimizer state are one store that all programs share. Any of them
may run next, without synchronization between two orders; batches that streamers have prefetched for
a program stay in its ring until it runs again.
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
    """Tensors of a checkpoint and the numbers of the steps, for any location of the store.

    gradients: those of the last step, as `gradient_views`, if the store is mapped.
    """

    tensors: dict[str, Array]
    numbers: Array | None
    gradients: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True)
class Feed:
    """A program's own batches: those of a data set from batch `first` on.

    number: index of the data set in the list that each streamer has.
    dataset: the same data set, in this process.
    last: first batch that is not used; None for all.
    data_order: description of the data set's order for the streamers' `receive_order`, if needed.
    is_pushed: the chief makes the batches itself and passes them to `push`; the data set is not
        read.
    """

    dataset: Dataset
    number: int = 0
    first: int = 0
    last: int | None = None
    data_order: bytes = b""
    is_pushed: bool = False


@dataclass(frozen=True)
class UpdatePause:
    """Updates that wait until the old state has been copied.

    order: order in which tensors are to be copied.
    copied: report that this many more tensors are copied.
    end: report that no more will be copied.
    sent: the tensors, if they are sent from another machine while steps run, instead of read from
        the state.
    """

    order: tuple[str, ...]
    copied: Callable[[int], None]
    end: Callable[[], None]
    sent: Mapping[str, Blocks] | None = None


class OrderedSteps(Protocol):
    """Ordered steps, which may be running."""

    @property
    def steps(self) -> StepOrder:
        """The order."""

    @property
    def is_done(self) -> bool:
        """Return whether `finish` will return without waiting."""

    def finish(self) -> StepsDone:
        """Wait until the steps are complete; call it once, before any other method of the machine.

        Raises: PeerLost if a peer of the run is lost
        """


class Program(Protocol):
    """One loaded Executable.

    plan: relocated onto the shared store.
    device: name of the device in log lines.
    feeding: streamers of its batches.
    runs_asynchronously: whether its steps are computed while this process continues.
    """

    plan: Plan
    device: str
    feeding: Feeding
    runs_asynchronously: bool

    def begin(self, first: int = 0, last: int | None = None, data_order: bytes = b"") -> None:
        """Set the next batch to number `first` of its data set; prefetched batches are discarded.

        Call it for another pass of an evaluation, whether or not the last pass has ended. A program
        that shares another one's batches is set with that one.

        data_order: description of the data set's order for the streamers, such as a permutation.
        """

    def push(self, batch: Batch) -> None:
        """Set the batch of the next step, for a program with pushed batches.

        One batch is pushed before each order of one step. Shapes: those of the plan's inputs

        Raises: CsrunError for a label or an index out of range
        """

    def run(self, steps: StepOrder) -> StepsDone:
        """Run up to `steps.count` ≤ `result_slots(plan)` steps; their updates are complete on
        return.
        """

    def order(self, steps: StepOrder) -> OrderedSteps:
        """Start steps as `run`, without waiting for them."""

    def result(self, slot: int, step: int) -> StepResult:
        """Return the result of step number `slot` of the last call."""

    def losses(self, count: int) -> list[float]:
        """Return the losses of the last call's first `count` steps."""

    def has_lost_peer(self) -> bool:
        """Return whether a peer of the run is lost, so that no step can follow; may be called at
        any time.
        """


class Machine(Program, Protocol):
    """A loaded run; the machine is also its own first program.

    state: tensors of a checkpoint, by name; may be written before the first call of `run`, and read
        between calls, whichever program has run.
    has_writable_state: it may also be written between calls, followed by a call of `written`.
    numbers: numbers passed with each step, if any: float64[MOST_STEPS, numbers + 1], step s in row
        s mod MOST_STEPS. They are written before the step's order; the last column, the norm of
        clipped gradients, is set after it.
    gradients: those of the last step, if the store keeps all of them.
    arena_bytes: memory on the wafer of the largest program.
    plans: plans of the programs, by number.
    """

    state: dict[str, Array]
    numbers: Array | None
    gradients: Mapping[str, Array]
    programming_time_s: float
    arena_bytes: int
    plans: list[Plan]

    @property
    def has_writable_state(self) -> bool:
        """Return whether the state may be written between two calls of `run`."""

    def written(self) -> None:
        """Note that the state was written, so that the wafers' copies of it are stale."""

    def load(self, executable: Executable, feed: Feed | Program) -> Program:
        """Load another program over the same store, between two calls of `run`.

        All of its parameters are parameters of the first program, by name. `feed` is either a data
        set, whose first batch is made when this returns, or another program: then this one computes
        on the first rows of that program's next batch. The incomplete last batch of a pass is such
        a program, so the order of the data is determined only once.

        Raises: CsrunError if the program does not fit the store, or does not fit on the wafer next
        to it
        """

    def unload(self, program: Program) -> None:
        """Free a program that will not run again, between two calls of `run`.

        Its batches remain while another program uses them; the first program's store remains.
        """

    def initialize(self) -> None:
        """Set all of the state to its initial values, by the run's seed, where the store is.

        Called once, before anything is written: the store is assumed to be zero.
        """

    def pause_updates(self) -> UpdatePause:
        """Make updates wait until the old state has been copied, between two calls of `run`."""

    def traced(self, asks: bool = True) -> list[tuple[str, Spans]]:
        """Return the spans that each process has traced, by process name.

        If a peer is lost, only those of this machine, since others cannot be queried.
        """

    def close(self, results: Results) -> None:
        """End the run in all processes, which return `results`."""


def relocate_to_store(owner: Plan, executable: Executable, sram_bytes: int | None) -> Executable:
    """Relocate an Executable onto the store of a run; sram_bytes: the wafer's memory (None: no
    limit).

    Raises: CsrunError if it does not fit the store, or does not fit on the wafer
    """
    return _fitting(executable.over(owner), sram_bytes)


def with_window(executable: Executable, nbytes: int, sram_bytes: int | None) -> Executable:
    """Return an Executable over its own store, with a gradient window of at least this size.

    Raises: CsrunError if it does not fit on the wafer
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
