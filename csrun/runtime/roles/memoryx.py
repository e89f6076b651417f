"""MemoryX: holds weights and optimizer state, and applies the learning algorithm."""

import select
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NoReturn

import numpy as np
from threadpoolctl import threadpool_limits

from csrun.executable import Executable, Plan, Runtime, Step, load
from csrun.runtime.remote.memoryx import serve_remote
from csrun.runtime.step.copying import UpdateGate
from csrun.runtime.step.timed import applied, updated
from csrun.runtime.step.trace import Recorder
from csrun.runtime.step.update_threads import UpdateThreads
from csrun.runtime.step.updates import Updates
from csrun.runtime.store.first_values import own_threads
from csrun.runtime.store.notes import Notes
from csrun.runtime.store.place import Part, make_store
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import (
    HoldUpdates,
    InitializeStore,
    LoadStore,
    LoadUpdates,
    ReadTrace,
    Results,
    Stop,
    StoreInitialized,
    StoreReady,
    Traced,
    UpdatesReady,
)
from csrun.runtime.wire.shared import Counter, HeldBack, Interrupted, Mail, Waiter
from csrun.runtime.wire.tcp import TcpChannel


def serve(control: Channel) -> Results:
    """Make the store that the chief asks for and update it until the chief says stop."""
    request, _ = control.receive()
    if isinstance(request, Stop):
        return request.results
    if not isinstance(request, LoadStore):
        raise RuntimeError(f"chief: expected LoadStore, got {type(request).__name__}")
    executable = load(Path(request.directory), request.digest)
    threadpool_limits(1, user_api="blas")
    if isinstance(control, TcpChannel):
        return serve_remote(control, executable, request)
    with ExitStack() as resources:
        store = _Store(control, executable, request, resources)
        try:
            store.work()
        except Interrupted as interrupted:
            return interrupted.stop.results


class _Updating:
    """One program's learning algorithm, and what it shares with the wafer.

    parts: the descriptors: gradients, weights, notes.
    """

    def __init__(
        self,
        plan: Plan,
        updates: Updates,
        control: Channel,
        resources: ExitStack,
        recorder: Recorder,
    ) -> None:
        self._recorder = recorder
        gradients = resources.enter_context(closing(Counter.create()))
        self._weights = resources.enter_context(closing(Counter.create()))
        self._notes = resources.enter_context(closing(Notes.create(plan)))
        self._updates = updates
        self.gradients = Waiter(gradients, control)
        self.parts = gradients.descriptor, self._weights.descriptor, self._notes.descriptor

    def take_step(self, step: Step) -> None:
        """Take group after group as their gradients come in."""
        for group in self._updates.order:
            self.gradients.take()
            step.index = int(self._notes.steps[group])
            if groups := updated(self._updates, group, step, self._recorder):
                self._weights.raise_by(len(groups))
        if self._updates.awaits_total:
            self.gradients.take()  # the wafer asks, when it has delivered to all tasks
            measured = self._updates.measured()
            self._notes.squares[: len(measured)] = measured
            self._weights.raise_by()
            self.gradients.take()  # the sum of all tasks', which the wafer makes
            groups = applied(self._updates, float(self._notes.total[0]), step, self._recorder)
            self._weights.raise_by(len(groups))


class _Store:
    """The store at work. Of its programs one delivers gradients at a time, a whole step of them."""

    def __init__(
        self, control: Channel, executable: Executable, request: LoadStore, resources: ExitStack
    ) -> None:
        self._control, self._resources = control, resources
        self._mail = Mail(control)
        self._owner: Plan = executable.plan
        self._part = Part.of(self._owner, request)
        made = make_store(self._owner, request.settings, request.checkpoints, self._part)
        self._store = resources.enter_context(closing(made))
        self._runtime = Runtime(request.settings.seed)
        self._step = Step()
        self._recorder = Recorder(request.settings.trace_steps)
        self._threads = resources.enter_context(closing(UpdateThreads(own_threads())))
        self._gate = UpdateGate(self._owner)
        self._held_back = resources.enter_context(closing(HeldBack(control)))
        self._programs: list[_Updating] = []
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        parts = self._add(executable)
        control.send(StoreReady(made.nbytes, made.disk), (made.memory.descriptor, *parts))

    def _add(self, executable: Executable) -> tuple[int, int, int]:
        plan, store = executable.plan, self._store
        program = self._threads.over(executable.update_program(store.memory.bytes, self._runtime))
        own = self._part.own(plan)
        updates = Updates(plan, program, store.pages.of(plan), self._gate, own)
        added = _Updating(plan, updates, self._control, self._resources, self._recorder)
        self._programs.append(added)
        self._poll.register(added.parts[0], select.POLLIN)
        return added.parts

    @np.errstate(all="ignore")  # the next step's loss tells what is not finite
    def work(self) -> NoReturn:
        """Update as gradients come in; ends by Interrupted."""
        while True:
            for program in self._programs:
                if program.gradients.ready():
                    program.take_step(self._step)
                    break
            else:
                self._wait()

    def _wait(self) -> None:
        for descriptor, _ in self._poll.poll():
            if descriptor == self._control.fileno():
                self._obey()

    def _obey(self) -> None:
        order = self._mail.take()
        match order:
            case InitializeStore():
                self._store.initialize(self._owner, self._runtime.seed)
                self._control.send(StoreInitialized())
            case HoldUpdates():
                self._gate.hold(self._held_back.begin())
            case ReadTrace():
                for part in self._recorder.parts():
                    self._control.send(Traced(part))
            case LoadUpdates(directory, digest):
                parts = self._add(load(Path(directory), digest).over(self._owner))
                self._control.send(UpdatesReady(), parts)
            case _:
                raise RuntimeError(f"chief: expected LoadUpdates, got {type(order).__name__}")
