"""Tensors of a checkpoint from another machine: cancelled, lost, or corrupted in transit."""

import socket
import threading
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest
from support.handmade import make
from support.wires import altering_pair, tcp_channel_pair

from csrun.base.errors import PeerLost
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import RunSettings
from csrun.executable import state_views
from csrun.records import checkpoints
from csrun.runtime.remote.state import HELD, SentState, StateSender
from csrun.runtime.step.finite import finite
from csrun.runtime.step.update_gate import UpdateGate
from csrun.runtime.store.backing import make_store
from csrun.runtime.wire.tcp import SUM, ConnectionPurpose, DamagedTransferError

WAIT_S = 120.0


@contextmanager
def connected(folder, altered=None):
    """The chief's end, MemoryX's state and its gate; a byte of its data may be altered."""
    plan = make(folder / "exe", ExecutionMode.WEIGHT_STREAMING).plan
    chief, control = tcp_channel_pair("memoryx", "chief")
    with ExitStack() as stack:
        stack.enter_context(closing(chief))
        stack.enter_context(closing(control))
        if altered is not None:
            first, second = stack.enter_context(altering_pair(altered))
            for channel, line in ((chief, first), (control, second)):
                channel.lines[ConnectionPurpose.STATE].close()
                channel.lines[ConnectionPurpose.STATE] = line
        store = stack.enter_context(closing(make_store(plan, RunSettings())))
        gate = UpdateGate(plan)
        stack.enter_context(closing(StateSender(control, plan, store, gate)))
        state = state_views(plan, store.memory.bytes)
        for number, tensor in enumerate(state.values()):
            tensor[...] = number + np.arange(tensor.size).reshape(tensor.shape)
        yield SentState(plan, None, chief), state, gate, chief


def saved(folder, step, tensors):
    return checkpoints.Writer(folder, {}, 5).write(step, finite(tensors))


def test_behind_one_that_is_given_up_the_next_is_whole(tmp_path):
    with connected(tmp_path) as (sent, state, gate, _):
        first = next(iter(sent.hold().values()))
        next(first.make())  # and the others are on their way
        sent.end()
        gate.wait(len(state))
        for tensor in state.values():
            tensor += 7
        found = checkpoints.open_checkpoint(saved(tmp_path, 3, sent.hold()))
        sent.end()
        for name, tensor in found.read(found.manifest.tensors):
            np.testing.assert_array_equal(tensor, state[name])


def test_updates_wait_until_all_is_sent_or_the_connection_is_lost(tmp_path):
    with connected(tmp_path) as (sent, state, gate, chief):
        tensors, updated = sent.hold(), threading.Event()
        waiting = updating(gate, state, updated)
        assert not updated.is_set()
        for tensor in tensors.values():
            list(tensor.make())
        waiting.join(WAIT_S)
        assert updated.is_set()
        sent.end()
        sent.hold()
        updated.clear()
        waiting = updating(gate, state, updated)
        assert not updated.is_set()
        chief.state.shutdown(socket.SHUT_RDWR)
        waiting.join(WAIT_S)
        assert updated.is_set()
        with pytest.raises(PeerLost, match="memoryx"):
            sent.hold()


def updating(gate, state, updated):
    """Threads that update all of a state."""

    def update():
        gate.wait(len(state))
        updated.set()

    thread = threading.Thread(target=update)
    thread.start()
    return thread


ANSWER = len(HELD) + SUM.size  # to the order to hold updates back, before the first tensor


@pytest.mark.parametrize(
    ("byte", "what"),
    [
        (0, "answers"),
        (ANSWER - 1, "answers"),
        (ANSWER, "a checkpoint's tensors"),
        (ANSWER + 3, "a checkpoint's tensors"),
        (ANSWER + 65, "a checkpoint's tensors"),
        (ANSWER + 100, "a checkpoint's tensors"),
    ],
    ids=["answer", "its sum", "value", "value that is inf then", "its sum", "another value"],
)
def test_what_is_altered_on_its_way_is_no_checkpoint(tmp_path, byte, what):
    """The first tensor has 64 bytes, and is not the first one of the file."""
    with connected(tmp_path) as (sent, *_):
        saved(tmp_path, 3, sent.hold())
    with connected(tmp_path / "altered", byte) as (sent, state, *_):
        for tensor in state.values():
            tensor[...] = 2.0**96
        with pytest.raises(DamagedTransferError, match=f"{what} from memoryx arrived corrupted"):
            saved(tmp_path, 4, sent.hold())
        sent.end()
    assert checkpoints.kept_steps(tmp_path) == (3,)
    assert checkpoints.newest_intact(tmp_path).step == 3
