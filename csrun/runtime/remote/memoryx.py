"""MemoryX on another machine than the wafer: the same store and updates, over TCP."""

import select
import struct
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path

import msgspec
import numpy as np

from csrun.base.errors import PeerLost
from csrun.executable import Executable, Runtime, StepState, load, numbers_view
from csrun.executable.arrays import Bytes
from csrun.executable.store_places import gradient_block
from csrun.runtime.cpus import thread_count
from csrun.runtime.remote.blocks import receive_gradients
from csrun.runtime.remote.state import StateSender
from csrun.runtime.remote.store import NUMBER, ORDER, SETTLED, StoreRequest
from csrun.runtime.step.sent_weights import SentWeights
from csrun.runtime.step.timed import applied, updated
from csrun.runtime.step.trace import SpanRecorder
from csrun.runtime.step.update_gate import UpdateGate
from csrun.runtime.step.update_threads import UpdateThreads
from csrun.runtime.step.updates import Updates
from csrun.runtime.store.backing import Store, StoreShare, make_store
from csrun.runtime.store.store_mailbox import squares_of
from csrun.runtime.wire import messages
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.shared import EndedByChief
from csrun.runtime.wire.tcp import TcpChannel, raw, receive_few, send_summed


def serve_remote(
    control: TcpChannel, executable: Executable, request: messages.LoadStore, below: str
) -> Results:
    """Create the store, and serve the wafer and the chief until the chief sends the end.

    below: connection that sends the wafer's requests; with several systems that of SwarmX.
    """
    # for several systems, the sums arrive
    plan = msgspec.structs.replace(executable.plan, systems=1)
    part = StoreShare.of(plan, request)
    gate = UpdateGate(plan, part.own(plan))
    with (
        closing(UpdateThreads(thread_count())) as threads,
        closing(make_store(plan, request.settings, request.checkpoints, part)) as store,
        closing(StateSender(control, plan, store, gate)) as sender,
    ):
        control.send(messages.StoreReady(store.nbytes, store.disk))
        stored = _StoreParts(store, part, threads, gate)
        served = _RemoteStore(control, executable, request, stored, below)
        try:
            return served.serve()
        except EndedByChief as interrupted:
            return interrupted.stop.results
        except PeerLost as lost:
            if sender.error is not None:  # the chief has ended for that reason
                raise sender.error from lost
            raise


@dataclass(frozen=True)
class _StoreParts:
    """The store and its updates: this task's shard, the threads and the gate."""

    store: Store
    share: StoreShare
    threads: UpdateThreads
    gate: UpdateGate


class _RemoteStore:
    """The store while it is served; the wafer's requests arrive on the channel's bulk
    connection.
    """

    def __init__(
        self,
        control: TcpChannel,
        executable: Executable,
        request: messages.LoadStore,
        stored: _StoreParts,
        below: str,
    ) -> None:
        self._stored, store = stored, stored.store
        self._control = control
        self._wafer, self._below = control.bulk, below
        self._store, self._bytes = store, store.memory.bytes
        self._runtime = Runtime(request.settings.seed)
        self._owner = executable.plan
        self._turn = _Served(executable, stored, self._runtime)
        self._programs = {0: self._turn}
        self._loaded = 1  # programs so far
        self._step = StepState()
        # updates of one wafer's gradients; several wafers send a loss each step first
        self._is_applied = True
        self._recorder = SpanRecorder(request.settings.trace_steps)

    @np.errstate(all="ignore")  # the next step's loss shows non-finite values
    def serve(self) -> Results:
        """Serve until the chief sends the end; the chief reports a lost wafer."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._wafer, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._control.fileno():
                    if (results := self._handle_chief()) is not None:
                        return results
                    continue
                try:
                    self._handle_wafer()
                except OSError:
                    poll.unregister(descriptor)

    def _handle_chief(self) -> Results | None:
        message, _ = self._control.receive()
        match message:
            case messages.Stop(results):
                return results
            case messages.ReadState(offset, nbytes):
                self._control.send_array(self._bytes_at(offset, nbytes))
                # Read once for a checkpoint or a restore: cached pages would evict those of the
                # steps.
                self._store.pages.evict(range(offset, offset + nbytes))
            case messages.WriteState(offset, nbytes):
                self._control.receive_array(self._bytes_at(offset, nbytes))
                self._store.pages.write_back(range(offset, offset + nbytes))
                self._control.send(messages.StateWritten())
            case messages.InitializeStore():
                self._store.initialize(self._owner, self._runtime.seed)
                self._control.send(messages.StoreInitialized())
            case messages.ReadTrace():
                for part in self._recorder.parts():
                    self._control.send(messages.Traced(part))
            case messages.LoadUpdates(directory, digest):
                executable = load(Path(directory), digest).over(self._owner)
                self._programs[self._loaded] = _Served(executable, self._stored, self._runtime)
                self._loaded += 1
                self._control.send(messages.UpdatesReady())
            case messages.UnloadProgram(number):
                del self._programs[number]
            case _:
                raise RuntimeError(f"chief: expected Stop, got {type(message).__name__}")
        return None

    def _bytes_at(self, offset: int, nbytes: int) -> Bytes:
        if not 0 <= offset <= offset + nbytes <= len(self._bytes):
            raise RuntimeError(
                f"chief: requested bytes {offset} to {offset + nbytes} outside the store"
            )
        return self._bytes[offset : offset + nbytes]

    def _handle_wafer(self) -> None:
        order, group, step, _ = ORDER.unpack(self._order(ORDER))
        turn = self._turn
        match StoreRequest(order):
            case StoreRequest.FETCH:
                turn.pages.fetch_weights(group)
                self._reply(map(raw, turn.sent.blocks(group)))
                turn.pages.mark_read(group, is_updated_next=False)
            case StoreRequest.GRADIENTS:
                gradients = turn.gradients[group]
                assert gradients is not None, "what is delivered has gradients"
                receive_gradients(self._wafer, gradients, self._below)
                self._step.index = step
                if self._is_applied:
                    updated(turn.updates, group, self._step, self._recorder)
            case StoreRequest.SQUARES:
                measured, squares = turn.updates.measured(), turn.squares
                squares[: len(measured)] = measured
                self._reply([raw(squares)])
            case StoreRequest.TOTAL:
                (total,) = NUMBER.unpack(self._order(NUMBER))
                if self._is_applied:
                    applied(turn.updates, total, self._step, self._recorder)
            case StoreRequest.LOSS:
                loss = self._order(NUMBER)
                self._is_applied = isfinite(*NUMBER.unpack(loss))
                self._reply([memoryview(loss)])
            case StoreRequest.SCALE:
                self._reply([memoryview(NUMBER.pack(turn.updates.loss_scale(step)))])
            case StoreRequest.SETTLE:
                self._reply([raw(SETTLED)])
            case StoreRequest.TURN:
                self._turn, self._recorder.program = self._programs[group], group
                self._turn.sent.invalidate()

    def _order(self, kind: struct.Struct) -> bytes:
        return receive_few(self._wafer, kind.size, f"orders from {self._below}")

    def _reply(self, parts: Iterable[memoryview]) -> None:
        held = memoryview(NUMBER.pack(self._stored.gate.held_s))
        send_summed(self._wafer, chain(parts, [held]))


class _Served:
    """A program's weights and gradients in the store, and its updates."""

    def __init__(self, executable: Executable, stored: _StoreParts, runtime: Runtime) -> None:
        store, gate = stored.store, stored.gate
        plan, memory = executable.plan, store.memory.bytes
        self.pages, self.squares = store.pages.of(plan), squares_of(plan)
        self.sent = SentWeights(executable, memory, self.pages.mark_updated)
        program = stored.threads.bind(executable, memory, runtime)
        program = self.sent.after_updates(program)
        self.gradients = [gradient_block(plan, group, memory) for group in plan.groups]
        own, numbers = stored.share.own(plan), numbers_view(plan, memory)
        self.updates = Updates(plan, program, self.pages, gate, own, numbers)
