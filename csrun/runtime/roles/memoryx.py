"""MemoryX: stores weights and optimizer state, and applies the updates."""

import select
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NoReturn

import numpy as np
from threadpoolctl import threadpool_limits

from csrun.executable import (
    Executable,
    Plan,
    RunMode,
    Runtime,
    StepState,
    load,
    numbers_view,
)
from csrun.executable.arrays import Bytes
from csrun.runtime.cpus import thread_count
from csrun.runtime.remote.memoryx import serve_remote
from csrun.runtime.step.call_threads import CallThreads
from csrun.runtime.step.sent_weights import SentWeights
from csrun.runtime.step.swarmx import LossReduction, SystemGradientSum
from csrun.runtime.step.timed import applied, updated
from csrun.runtime.step.trace import SpanRecorder, shared_recorder
from csrun.runtime.step.update_gate import UpdateGate
from csrun.runtime.step.update_threads import UpdateThreads
from csrun.runtime.step.updates import Updates
from csrun.runtime.store.backing import StoreShare, make_store
from csrun.runtime.store.store_mailbox import MailboxBlock
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import (
    InitializeStore,
    JoinSwarmX,
    LoadStore,
    LoadUpdates,
    PauseUpdates,
    ReadTrace,
    Results,
    Stop,
    StoreInitialized,
    StoreReady,
    Traced,
    UnloadProgram,
    UpdatesReady,
)
from csrun.runtime.wire.rendezvous import RunFolder, join_swarmx
from csrun.runtime.wire.shared import (
    BRIEF_S,
    Counter,
    EndedByChief,
    Inbox,
    UpdatePauseCounter,
    Waiter,
)
from csrun.runtime.wire.tcp import ConnectionPurpose, TcpChannel


def serve(control: Channel, folder: RunFolder | None = None) -> Results:
    """Create the store that the chief requests and update it until the chief sends the end.

    folder: meeting place of the run's tasks, including a SwarmX task between this task and the
        wafers.
    """
    request, _ = control.receive()
    below = "the wafer"
    if isinstance(request, JoinSwarmX):
        _join_swarmx(control, folder, request)
        below = request.task
        request, _ = control.receive()
    if isinstance(request, Stop):
        return request.results
    if not isinstance(request, LoadStore):
        raise RuntimeError(f"chief: expected LoadStore, got {type(request).__name__}")
    executable = load(Path(request.directory), request.digest).with_store(request.layout)
    # Updates are elementwise; BLAS threads would only take CPUs from the wafer.
    threadpool_limits(1, user_api="blas")
    if isinstance(control, TcpChannel):
        return serve_remote(control, executable, request, below)
    with ExitStack() as resources:
        store = _StoreServer(control, executable, request, resources)
        try:
            store.work()
        except EndedByChief as interrupted:
            return interrupted.stop.results


def _join_swarmx(control: Channel, folder: RunFolder | None, order: JoinSwarmX) -> None:
    """Connect to a SwarmX task, which then sends the wafers' requests."""
    if folder is None or not isinstance(control, TcpChannel):
        raise RuntimeError("chief: JoinSwarmX requires a MemoryX on another machine")
    with closing(join_swarmx(folder, order.task, order.me, order.me)) as joined:
        control.bulk.close()
        control.lines[ConnectionPurpose.BULK] = joined.bulk.dup()


class _Updating:
    """Updates of a program, by its number, and its memory shared with each wafer.

    parts: for each wafer the descriptors of gradients, weights and mailbox.
    """

    def __init__(
        self,
        plan: Plan,
        store: Bytes,
        updates: Updates,
        control: Channel,
        resources: ExitStack,
        recorder: SpanRecorder,
        number: int,
        threads: CallThreads,
    ) -> None:
        self._recorder, self._number = recorder, number
        self._resources = resources.enter_context(ExitStack())
        self._updates = updates
        self._wafers = [_WaferLink(plan, control, self._resources) for _ in range(plan.systems)]
        self.parts = tuple(part for wafer in self._wafers for part in wafer.parts)
        several = plan.systems > 1 and plan.run_mode is RunMode.TRAIN
        self._swarmx = (
            (LossReduction(plan, store), SystemGradientSum(plan, store, threads))
            if several
            else None
        )

    @property
    def gradients(self) -> Sequence[int]:
        """Descriptors that are readable when a wafer has delivered a group."""
        return [wafer.parts[0] for wafer in self._wafers]

    def is_due(self) -> bool:
        """Return whether the first gradients of a step have arrived."""
        return any(wafer.gradients.ready() for wafer in self._wafers)

    def close(self) -> None:
        """Close; the program has no more steps."""
        self._resources.close()

    def take_step(self, step: StepState) -> None:
        """Update group after group as their gradients arrive, and notify all wafers of each update.

        A step of several systems whose loss is not finite is processed without updates.
        """
        is_applied, self._recorder.program = True, self._number
        for position, group in enumerate(self._updates.order):
            self._gather(group)
            step.index = int(self._wafers[0].mailbox.steps[group])
            if self._swarmx is not None and position == 0:
                is_applied = self._swarmx[0].count()
            if is_applied:
                self._notify(updated(self._updates, group, step, self._recorder))
            elif not self._updates.awaits_total:
                self._notify((group,))
        if self._updates.awaits_total:
            self._apply_total(step, is_applied)

    def _notify(self, groups: Sequence[int]) -> None:
        """Notify all wafers that these groups are done."""
        for wafer in self._wafers if groups else ():
            wafer.mailbox.held[0] = self._updates.held_s
            wafer.weights.raise_by(len(groups))

    def _gather(self, group: int) -> None:
        """Wait for the group's gradients of all systems, and add them in the systems' order."""
        for system, wafer in enumerate(self._wafers):
            wafer.gradients.take()
            if self._swarmx is not None:
                self._swarmx[1].add(group, system)

    def _apply_total(self, step: StepState, is_applied: bool) -> None:
        """Send this task's sums of squares, then update with the total over all tasks from the
        wafer.

        With several wafers this is the first one: each task has the sums of all wafers' gradients.
        """
        wafer = self._wafers[0]
        wafer.gradients.take()  # the wafer requests them after it has delivered to all tasks
        measured = self._updates.measured()
        wafer.mailbox.squares[: len(measured)] = measured
        wafer.weights.raise_by()
        wafer.gradients.take()  # the total over all tasks, computed by the wafer
        if is_applied:
            applied(self._updates, float(wafer.mailbox.total[0]), step, self._recorder)
        self._notify(self._updates.order)


class _WaferLink:
    """MemoryX's end of the memory of a program that it shares with one wafer.

    parts: descriptors of gradients, weights, mailbox.
    """

    def __init__(self, plan: Plan, control: Channel, resources: ExitStack) -> None:
        gradients = resources.enter_context(closing(Counter.create()))
        self.weights = resources.enter_context(closing(Counter.create()))
        self.mailbox = resources.enter_context(closing(MailboxBlock.create(plan)))
        self.gradients = Waiter(gradients, control, brief_s=BRIEF_S)
        self.parts = gradients.descriptor, self.weights.descriptor, self.mailbox.descriptor


class _StoreServer:
    """The store at work. One program at a time delivers gradients, for a complete step."""

    def __init__(
        self, control: Channel, executable: Executable, request: LoadStore, resources: ExitStack
    ) -> None:
        self._control, self._resources = control, resources
        self._inbox = Inbox(control)
        self._owner: Plan = executable.plan
        self._part = StoreShare.of(self._owner, request)
        made = make_store(self._owner, request.settings, request.checkpoints, self._part)
        self._store = resources.enter_context(closing(made))
        self._runtime = Runtime(request.settings.seed)
        self._step = StepState()
        self._recorder = shared_recorder(request.settings.trace_steps, control)
        self._threads = resources.enter_context(closing(UpdateThreads(thread_count())))
        self._gate = UpdateGate(self._owner)
        self._update_pause = resources.enter_context(closing(UpdatePauseCounter(control)))
        self._programs: dict[int, _Updating] = {}
        self._loaded = 0  # programs so far
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        parts = self._add(executable)
        control.send(StoreReady(made.nbytes, made.disk), (*made.parts, *parts))

    def _add(self, executable: Executable) -> tuple[int, ...]:
        plan, memory = executable.plan, self._store.memory.bytes
        program = self._threads.bind(executable, memory, self._runtime)
        program = SentWeights(executable, memory).after_updates(program)
        own = self._part.own(plan)
        pages, numbers = self._store.pages.of(plan), numbers_view(plan, memory)
        updates = Updates(plan, program, pages, self._gate, own, numbers)
        shared = self._control, self._resources, self._recorder
        added = _Updating(plan, memory, updates, *shared, self._loaded, self._threads.calls)
        self._programs[self._loaded] = added
        self._loaded += 1
        for gradients in added.gradients:
            self._poll.register(gradients, select.POLLIN)
        return added.parts

    @np.errstate(all="ignore")  # the next step's loss shows non-finite values
    def work(self) -> NoReturn:
        """Update as gradients arrive; ends by EndedByChief."""
        while True:
            for program in self._programs.values():
                if program.is_due():
                    program.take_step(self._step)
                    break
            else:
                self._wait()

    def _wait(self) -> None:
        for descriptor, _ in self._poll.poll():
            if descriptor == self._control.fileno():
                self._handle_order()

    def _handle_order(self) -> None:
        order = self._inbox.take()
        match order:
            case InitializeStore():
                self._store.initialize(self._owner, self._runtime.seed)
                self._control.send(StoreInitialized())
            case PauseUpdates():
                self._gate.hold(self._update_pause.begin())
            case ReadTrace():
                for part in self._recorder.parts():
                    self._control.send(Traced(part))
            case LoadUpdates(directory, digest):
                parts = self._add(load(Path(directory), digest).over(self._owner))
                self._control.send(UpdatesReady(), parts)
            case UnloadProgram(number):
                program = self._programs.pop(number)
                for gradients in program.gradients:
                    self._poll.unregister(gradients)
                program.close()
            case _:
                raise RuntimeError(f"chief: expected LoadUpdates, got {type(order).__name__}")
