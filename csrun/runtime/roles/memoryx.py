"""MemoryX: holds weights and optimizer state, and applies the learning algorithm."""

from contextlib import closing
from pathlib import Path
from typing import NoReturn

import numpy as np
from threadpoolctl import threadpool_limits

from csrun.executable import Runtime, Step, load
from csrun.runtime.remote.memoryx import serve_remote
from csrun.runtime.step.weights import Updates
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.messages import LoadStore, Results, Stop, StoreReady
from csrun.runtime.wire.shared import Counter, Interrupted, SharedMemory, Waiter
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
    nbytes = executable.plan.store.nbytes
    with (
        closing(SharedMemory.create("store", nbytes)) as store,
        closing(Counter.create()) as gradients,
        closing(Counter.create()) as weights,
    ):
        parts = store.descriptor, gradients.descriptor, weights.descriptor
        control.send(StoreReady(nbytes), parts)
        program = executable.update_program(store.bytes, Runtime(request.seed))
        updates = Updates(executable.plan, program)
        try:
            _update(updates, Waiter(gradients, control), weights, Step(index=request.first_step))
        except Interrupted as interrupted:
            return interrupted.stop.results


@np.errstate(all="ignore")  # the next step's loss tells what is not finite
def _update(updates: Updates, gradients: Waiter, weights: Counter, step: Step) -> NoReturn:
    """Take group after group as their gradients come in; ends by Interrupted."""
    while True:
        for group in updates.order:
            gradients.take()
            if updated := updates.deliver(group, step):
                weights.raise_by(len(updated))
        if not updates.order:  # nothing is trained: only the end can come
            gradients.take()
        step.index += 1
