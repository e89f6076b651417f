"""The wafer's process: maps one arena of the planned size, loads the program and runs it.

Started as `python -m csrun.runtime.roles.wafer RUN_FOLDER JOB SECRET_FILE SYSTEM`, one a CS system.
"""

import socket
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter

from threadpoolctl import threadpool_limits

from csrun.base import open_files
from csrun.context.job import read_secret
from csrun.executable import Plan, RunMode, Runtime, load
from csrun.executable.bind import store_of
from csrun.runtime.remote.store import StoreLink
from csrun.runtime.remote.weights import GradientMemory, RemoteWeights
from csrun.runtime.step.engine import Engine, make_compute
from csrun.runtime.step.results import ResultSlots, result_slot_bytes
from csrun.runtime.step.source import RingSource
from csrun.runtime.step.weights import (
    ResidentWeights,
    Slots,
    StreamedWeights,
    Updates,
    Weights,
)
from csrun.runtime.wire import messages
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.rendezvous import RunFolder, take_part, wafer_name
from csrun.runtime.wire.ring import RingReader
from csrun.runtime.wire.shared import Counter, Interrupted, SharedMemory, Waiter


def serve(control: Channel) -> Results:
    """Load what the chief says and run steps until it says stop."""
    request, descriptors = control.receive()
    if isinstance(request, messages.Stop):
        return request.results
    if not isinstance(request, messages.LoadWafer):
        raise RuntimeError(f"chief: expected LoadWafer, got {type(request).__name__}")
    with ExitStack() as resources:
        engine = _load(request, descriptors, control, resources)
        try:
            while isinstance(order := control.receive()[0], messages.RunSteps):
                control.send(engine.run(order.first, order.count))
        except Interrupted as interrupted:
            order = interrupted.stop
    return order.results if isinstance(order, messages.Stop) else {}


def _load(
    request: messages.LoadWafer, store_parts: list[int], control: Channel, resources: ExitStack
) -> Engine:
    started = perf_counter()
    executable = load(Path(request.directory), request.digest)
    plan = executable.plan
    threadpool_limits(plan.blas_threads, user_api="blas")
    result_bytes = request.result_slots * result_slot_bytes(plan)
    arena = resources.enter_context(closing(SharedMemory.create("arena", plan.arena_bytes)))
    slots = resources.enter_context(closing(SharedMemory.create("results", result_bytes)))
    runtime = Runtime(request.seed)
    weights: Weights

    def weights_overdue(waited_s: float) -> None:
        control.send(messages.WeightsAwaited(waited_s))

    if request.remote_store:
        gradients = GradientMemory(plan.store.nbytes)
        store = gradients.bytes
        connection = socket.socket(fileno=store_parts[0])
        link = resources.enter_context(closing(StoreLink(connection)))
        arrived = Waiter(link.arrived, control, weights_overdue)
        weights = RemoteWeights(plan, arena.bytes, gradients, link, arrived)
    elif store_parts:
        memory, delivered, updates = store_parts
        store = resources.enter_context(closing(SharedMemory.attach(memory))).bytes
        weights = StreamedWeights(
            plan,
            resources.enter_context(closing(Slots(plan, arena.bytes, store))),
            updates=Waiter(
                resources.enter_context(closing(Counter(updates))), control, weights_overdue
            ),
            gradients=resources.enter_context(closing(Counter(delivered))),
        )
    else:
        store = store_of(plan, arena.bytes, None)
        weights = ResidentWeights(Updates(plan, executable.update_program(store, runtime)))
    resources.enter_context(open_files.room_for(open_files.PER_STREAMER * request.rings))
    rings = [
        resources.enter_context(closing(_ring(plan, request.ring_slots, control, turn)))
        for turn in range(request.rings)
    ]
    engine = Engine(
        plan,
        make_compute(executable, arena.bytes, store, runtime, weights),
        RingSource(rings, request.first_batch, plan.run_mode is not RunMode.TRAIN),
        weights,
        ResultSlots(plan, slots.bytes),
    )
    ready = messages.WaferReady(perf_counter() - started)
    control.send(ready, [arena.descriptor, slots.descriptor])
    return engine


def _ring(plan: Plan, slots: int, control: Channel, turn: int) -> RingReader:
    def overdue(waited_s: float) -> None:
        control.send(messages.BatchAwaited(turn, waited_s, ring.entered()))

    _, (memory, filled, free) = control.expect(messages.AddRing, descriptors=3)
    ring = RingReader((memory, filled, free), plan.inputs, slots, control, overdue, turn)
    return ring


def main(arguments: list[str]) -> None:
    """Join the run named on the command line and serve it."""
    folder, job, secret_file, system = arguments
    run = RunFolder(Path(folder), job, read_secret(Path(secret_file)))
    take_part(run, wafer_name(system), serve)


if __name__ == "__main__":
    main(sys.argv[1:])
