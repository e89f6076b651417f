"""Wafer process: maps one arena of the planned size, loads programs and runs them.

Started as `python -m csrun.runtime.roles.wafer RUN_FOLDER JOB SECRET_FILE SYSTEM`, one process per
CS system.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from threadpoolctl import threadpool_limits

from csrun.base import open_files
from csrun.context.job import read_secret
from csrun.executable import Executable, InputSpec, Plan, RunMode, Runtime, load
from csrun.executable.replica_plan import inputs_of_part
from csrun.executable.store_places import numbers_view
from csrun.executable.threads import threads_of
from csrun.records import log_lines
from csrun.runtime.remote.weights import RemoteWeights
from csrun.runtime.roles.wafer_memory import WaferMemory, stall_waiter
from csrun.runtime.step.engine import Engine, make_compute
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.results import ResultSlots, result_slot_bytes
from csrun.runtime.step.scale_rows import scale_rows
from csrun.runtime.step.sent_weights import SentWeights
from csrun.runtime.step.source import BatchSource, FirstRows, RingSource
from csrun.runtime.step.swarmx import (
    SINGLE_SYSTEM,
    GlobalLossCheck,
    LossCheck,
    LossReducer,
    SystemShare,
    loss_reductions_of,
)
from csrun.runtime.step.timed import TimedWeights, timed
from csrun.runtime.step.trace import LayerMarks, SpanRecorder, shared_recorder
from csrun.runtime.step.updates import Updates
from csrun.runtime.step.weights import (
    ArenaOwner,
    ResidentWeights,
    Slots,
    StreamedWeights,
    Weights,
)
from csrun.runtime.store.store_mailbox import MailboxBlock, MemoryxLink
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.rendezvous import RunFolder, join_run, wafer_name
from csrun.runtime.wire.ring import RingReader, prefetch_depths
from csrun.runtime.wire.shared import (
    BRIEF_S,
    Counter,
    EndedByChief,
    SharedMemory,
    UpdatePauseCounter,
)


def serve(control: Channel) -> Results:
    """Load programs and run steps as the chief requests, until it sends the end."""
    order, descriptors = control.receive()
    with ExitStack() as resources:
        wafer = _Wafer(control, resources)
        try:
            while not isinstance(order, messages.Stop):
                wafer.handle(order, descriptors)
                order, descriptors = control.receive()
        except EndedByChief as interrupted:
            order = interrupted.stop
    return order.results


@dataclass(frozen=True)
class _LoadedProgram:
    """A loaded program; resources: everything it uses besides its batches."""

    plan: Plan
    engine: Engine
    weights: Weights
    resources: ExitStack
    blas_threads: int


@dataclass(frozen=True)
class _ProgramBatches:
    """Batches of a program, which other programs may also use, even after it was unloaded."""

    rings: RingSource
    inputs: tuple[InputSpec, ...]
    resources: ExitStack


class _Wafer:
    """State of the wafer: the arena, and the programs over it, numbered in the order of loading."""

    def __init__(self, control: Channel, resources: ExitStack) -> None:
        self._control, self._resources = control, resources
        self._programs: dict[int, _LoadedProgram] = {}
        self._sources: dict[int, _ProgramBatches] = {}  # of programs with their own batches
        self._loaded = 0  # programs so far
        self._arena_owner = ArenaOwner()
        self._update_pause = resources.enter_context(closing(UpdatePauseCounter(control)))
        self._blas_threads = 0  # chosen by BLAS

    def handle(self, order: messages.AnyMessage, descriptors: list[int]) -> None:
        """Execute a message of the chief."""
        match order:
            case messages.RunSteps():
                self._control.send(self._run(order))
            case messages.WeightsChanged():
                self._arena_owner.forget()
            case messages.BeginPass(number):
                self._sources[number].rings.begin(order.first, order.number)
            case messages.UnloadProgram(number):
                program = self._programs.pop(number)
                self._arena_owner.end(program.weights)
                program.resources.close()
            case messages.EndStreaming(number):
                self._sources.pop(number).resources.close()
            case messages.ReadTrace():
                for part in self._recorder.parts():
                    self._control.send(messages.Traced(part))
            case messages.PauseUpdates():
                self._memory.gate.hold(self._update_pause.begin())
            case messages.LoadWafer():
                self._load(order, descriptors)
            case _:
                raise RuntimeError(f"chief: expected LoadWafer, got {type(order).__name__}")

    def _run(self, order: messages.RunSteps) -> messages.StepsDone:
        program = self._programs[order.program]
        if self._arena_owner.take(program.weights):
            self._use_blas_threads(program.blas_threads)
        self._recorder.program = order.program
        return program.engine.run(order.steps)

    def _load(self, request: messages.LoadWafer, store_parts: list[int]) -> None:
        started = perf_counter()
        executable = load(Path(request.directory), request.digest)
        is_first = not self._loaded
        if is_first:
            executable = executable.with_store(request.layout)
            self._recorder = shared_recorder(request.trace_steps, self._control)
            self._use_blas_threads(threads_of(executable.plan, request.cpus).blas)
            self._memory = WaferMemory(
                executable.plan,
                request,
                LayerMarks(self._recorder),
                store_parts,
                self._control,
                self._resources,
            )
        else:
            executable = executable.over(self._memory.owner)
            self._memory.make_room(executable.plan)
        executable = executable.of_system(request.system)
        plan = executable.plan
        result_bytes = request.result_slots * result_slot_bytes(plan)
        resources = self._resources.enter_context(ExitStack())
        slots = resources.enter_context(closing(SharedMemory.create("results", result_bytes)))
        program = self._program(executable, request, store_parts, slots, resources)
        self._programs[self._loaded] = program
        self._loaded += 1
        arena = [self._memory.arena.descriptor] if is_first else []
        ready = messages.WaferReady(perf_counter() - started)
        self._control.send(ready, [*arena, slots.descriptor])

    def _use_blas_threads(self, threads: int) -> None:
        if threads != self._blas_threads:
            threadpool_limits(threads, user_api="blas")
            self._blas_threads = threads

    def _program(
        self,
        executable: Executable,
        request: messages.LoadWafer,
        store_parts: list[int],
        slots: SharedMemory,
        resources: ExitStack,
    ) -> _LoadedProgram:
        plan, memory = executable.plan, self._memory
        threads = threads_of(plan, request.cpus)
        runtime = threads.over(memory.runtime)
        weights = self._weights(executable, request.system, runtime, store_parts, resources)
        batches = self._batches(plan, request)
        arena = memory.arena.bytes
        # Only the training's steps are traced; an evaluation between them counts its own steps.
        recorder = self._recorder if plan.run_mode is RunMode.TRAIN else SpanRecorder(None)
        watched = timed(weights, recorder, plan.store_in_arena)
        # otherwise there are no waits to measure
        is_watched = recorder.steps or not plan.store_in_arena
        reached = watched if is_watched else weights
        system, results = request.system, ResultSlots(plan, slots.bytes)
        loss_check = self._loss_check(plan, system, weights, watched)
        placed = PlacedProgram(executable, arena, memory.store, runtime)
        compute = make_compute(placed, reached, loss_check)
        share = SystemShare(batches, plan, system) if plan.systems > 1 else batches
        engine = Engine(plan, compute, share, watched, results, system, loss_check)
        return _LoadedProgram(plan, engine, weights, resources, threads.blas)

    def _loss_check(
        self, plan: Plan, system: int, weights: Weights, watched: TimedWeights
    ) -> LossCheck:
        """Return the wafer's own verdict, or in a training of several systems its vote."""
        if not plan.deliveries or plan.systems == 1:
            return SINGLE_SYSTEM
        memory, first = self._memory, plan.deliveries[0]
        reductions: Mapping[int, LossReducer]
        match weights:
            case StreamedWeights():
                reductions = loss_reductions_of(plan, memory.store, memory.server_of(plan))
                awaited: Callable[[], None] = partial(weights.await_update, first)
            case RemoteWeights():
                reductions, awaited = {first: weights.reduction}, weights.await_loss_sum
            case _:
                return SINGLE_SYSTEM
        return GlobalLossCheck(reductions, system, partial(watched.wait, awaited))

    def _weights(
        self,
        executable: Executable,
        system: int,
        runtime: Runtime,
        store_parts: list[int],
        resources: ExitStack,
    ) -> Weights:
        plan, memory = executable.plan, self._memory
        arena = memory.arena.bytes
        if memory.remote is not None:
            server_of = memory.server_of(plan)
            return memory.remote.weights(plan, arena, server_of, self._loaded)
        if plan.store_in_arena:
            program = executable.update_program(memory.resident, runtime)
            numbers = numbers_view(plan, memory.resident)
            updates = Updates(plan, program, gate=memory.gate, numbers=numbers)
            return ResidentWeights(updates, SentWeights(executable, memory.resident))
        ends = self._ends(plan, store_parts, resources)
        server_of = memory.server_of(plan)
        sent = SentWeights(
            executable, memory.store, lambda g: ends[server_of[g]].pages.mark_updated(g)
        )
        slots = resources.enter_context(closing(Slots(plan, arena, sent)))
        first = server_of[plan.deliveries[0]] if plan.deliveries else 0
        scales = scale_rows(plan, numbers_view(plan, memory.store, first))
        return StreamedWeights(plan, slots, ends, server_of, system, scales)

    def _ends(self, plan: Plan, store_parts: list[int], resources: ExitStack) -> list[MemoryxLink]:
        """Return the ends of a program's memory shared with each MemoryX task of this machine."""
        opened, servers = resources.enter_context, len(self._memory.pages)
        each = len(store_parts) // servers
        ends = []
        for server, pages in enumerate(self._memory.pages):
            delivered, updates, mailbox = store_parts[each * server :][:each][-3:]
            counted = opened(closing(Counter(updates)))
            ends.append(
                MemoryxLink(
                    stall_waiter(counted, self._control, server, BRIEF_S),
                    opened(closing(Counter(delivered))),
                    opened(closing(MailboxBlock(SharedMemory.attach(mailbox), plan))),
                    pages.of(plan),
                )
            )
        return ends

    def _batches(self, plan: Plan, request: messages.LoadWafer) -> BatchSource:
        """Return another program's batches, or those of the rings that follow this message."""
        if request.batches_of is not None:
            of = self._sources[request.batches_of]
            return FirstRows(of.rings, plan.inputs, of.inputs)
        self._resources.enter_context(open_files.room_for(open_files.PER_STREAMER * request.rings))
        resources = self._resources.enter_context(ExitStack())
        rings = self._rings(plan, request, resources)
        self._sources[self._loaded] = _ProgramBatches(rings, plan.inputs, resources)
        return rings

    def _rings(self, plan: Plan, request: messages.LoadWafer, resources: ExitStack) -> RingSource:
        opened = resources.enter_context
        rings = [
            opened(closing(_ring(plan, request, self._control, turn)))
            for turn in range(request.rings)
        ]
        to_the_last = plan.run_mode is not RunMode.TRAIN
        return RingSource(rings, request.first_batch, to_the_last, request.parts)


def _ring(plan: Plan, request: messages.LoadWafer, control: Channel, turn: int) -> RingReader:
    def overdue(waited_s: float) -> None:
        control.send(messages.BatchStall(turn, waited_s, ring.entered()))

    _, (memory, filled, free) = control.expect(messages.AddRing, descriptors=3)
    descriptors, ahead = (memory, filled, free), prefetch_depths(request.rings, request.parts)
    inputs = inputs_of_part(plan.inputs, request.parts)
    ring = RingReader(
        descriptors, inputs, request.ring_slots, control, overdue, turn=turn, ahead=ahead
    )
    return ring


def main(arguments: list[str]) -> None:
    """Join the run named on the command line and serve it."""
    log_lines.configure()
    folder, job, secret_file, system = arguments
    run = RunFolder(Path(folder), job, read_secret(Path(secret_file)))
    join_run(run, wafer_name(system), serve)


if __name__ == "__main__":
    main(sys.argv[1:])
