"""SwarmX relay over sockets: one order for all, sums in a fixed order, replies to all."""

import select
import socket
import threading
from contextlib import ExitStack, closing
from itertools import permutations

import numpy as np
import pytest

from csrun.executable.plan import PREFETCH_BYTES
from csrun.runtime.remote import relay
from csrun.runtime.remote.blocks import BLOCK, GradientsOut, receive_gradients
from csrun.runtime.remote.relay import PART_BYTES, Relay
from csrun.runtime.remote.store import NUMBER, ORDER, StoreRequest
from csrun.runtime.step import call_threads
from csrun.runtime.step.trace import SpanRecorder
from csrun.runtime.wire.shared import Counter
from csrun.runtime.wire.tcp import receive_few, summed

WAIT_S = 120


class Between:
    """A relay and its peers."""

    def __init__(self, stack: ExitStack, children: int) -> None:
        self.above, parent = map(stack.enter_context, socket.socketpair())
        pairs = [socket.socketpair() for _ in range(children)]
        self.below = [stack.enter_context(mine) for mine, _ in pairs]
        own = [stack.enter_context(its) for _, its in pairs]
        for each in (self.above, *self.below):
            each.settimeout(WAIT_S)
        self.failed = stack.enter_context(closing(Counter.create()))
        named = {f"child {number}": end for number, end in enumerate(own)}
        made = Relay(parent, named, "float32", SpanRecorder(None), self.failed)
        self.relay = stack.enter_context(closing(made))


@pytest.fixture
def between():
    """Function that starts a relay with this many children."""
    with ExitStack() as stack:
        yield lambda children: Between(stack, children)


def head(order, group=0, step=0, nbytes=0):
    return summed(ORDER.pack(order, group, step, nbytes))


def received(above):
    """Next order received by MemoryX: its kind and group."""
    order, group, _, nbytes = ORDER.unpack(receive_few(above, ORDER.size, "orders"))
    return StoreRequest(order), group, nbytes


@pytest.mark.parametrize("arrival", list(permutations(range(3))))
def test_gradients_are_added_in_the_order_of_the_children(between, monkeypatch, arrival):
    """Wafers send in the order of `arrival`."""
    monkeypatch.setattr(relay, "thread_count", lambda: 1 + arrival[0])
    monkeypatch.setattr(call_threads, "LEAST_SHARED_SUM", 100)
    monkeypatch.setattr(call_threads, "SUMMED_AT_A_TIME", 64)
    random = np.random.default_rng(2)
    parts = [(random.standard_normal(1000) * 10.0**-k).astype("f") for k in range(3)]
    around = between(3)
    for child in arrival:
        around.below[child].sendall(head(StoreRequest.GRADIENTS, 7, 3, parts[child].nbytes))
        GradientsOut(around.below[child]).send(7, parts[child])
    found = np.empty_like(parts[0])
    assert received(around.above) == (StoreRequest.GRADIENTS, 7, found.nbytes)
    receive_gradients(around.above, found, "the relay")
    np.testing.assert_array_equal(found, (parts[0] + parts[1]) + parts[2])
    assert (found != parts[0] + (parts[1] + parts[2])).any()


def test_a_sum_has_the_blocks_of_all(between):
    """Each wafer sends the embedding rows of its own samples."""
    block = BLOCK // 4
    parts = np.zeros((2, PREFETCH_BYTES), "f")
    parts[0, 3 * block] = 1
    parts[1, 3 * block] = 2
    parts[1, 40 * block :][:5] = 5
    around = between(2)
    for child, part in zip(around.below, parts, strict=True):
        child.sendall(head(StoreRequest.GRADIENTS, nbytes=part.nbytes))
        GradientsOut(child).send(0, part)
    received(around.above)
    found = np.full_like(parts[0], np.nan)
    receive_gradients(around.above, found, "the relay")
    np.testing.assert_array_equal(found, parts[0] + parts[1])


def test_an_answer_goes_to_all_that_have_asked_once(between):
    """In the order of the requests, for any size."""
    around = between(3)
    sizes = [PART_BYTES + 5, 1, 3 * PART_BYTES]
    asked = b"".join(head(StoreRequest.FETCH, n, nbytes=size) for n, size in enumerate(sizes))
    for child in around.below:
        child.sendall(asked)
    assert [received(around.above) for _ in sizes] == [
        (StoreRequest.FETCH, group, size) for group, size in enumerate(sizes)
    ]
    answers = [np.random.default_rng(size).bytes(size) for size in sizes]
    found = {}

    def take(number, child):
        found[number] = [receive_few(child, size, "answers") for size in sizes]

    threads = [threading.Thread(target=take, args=each) for each in enumerate(around.below)]
    for thread in threads:
        thread.start()
    for answer in answers:
        around.above.sendall(summed(answer))
    for thread in threads:
        thread.join(WAIT_S)
    assert found == dict.fromkeys(range(3), answers)


@pytest.mark.parametrize(
    ("losses", "whole"), [([1.5, 2.25], 3.75), ([np.inf, -np.inf], np.nan), ([np.nan, 1], np.nan)]
)
def test_the_parts_of_a_loss_go_up_as_their_sum(between, losses, whole):
    around = between(2)
    for child, loss in zip(around.below, losses, strict=True):
        child.sendall(head(StoreRequest.LOSS, nbytes=NUMBER.size) + summed(NUMBER.pack(loss)))
    assert received(around.above) == (StoreRequest.LOSS, 0, NUMBER.size)
    told = receive_few(around.above, NUMBER.size, "a loss")
    np.testing.assert_equal(NUMBER.unpack(told)[0], whole)
    around.above.sendall(summed(told))
    found = [receive_few(child, NUMBER.size, "a loss") for child in around.below]
    assert found == [told, told]


def test_wafers_that_differ_end_the_relay_with_a_word(between):
    around = between(2)
    for child, group in zip(around.below, (1, 2), strict=True):
        child.sendall(head(StoreRequest.FETCH, group))
    poll = select.poll()
    poll.register(around.failed.descriptor, select.POLLIN)
    assert poll.poll(WAIT_S * 1000)
    assert "sent different orders" in str(around.relay.error)


def test_what_has_arrived_altered_is_told_with_whose_it_is(between):
    around = between(2)
    right = head(StoreRequest.FETCH, 1)
    around.below[0].sendall(right)
    around.below[1].sendall(right[:-1] + bytes([right[-1] ^ 1]))
    poll = select.poll()
    poll.register(around.failed.descriptor, select.POLLIN)
    assert poll.poll(WAIT_S * 1000)
    assert str(around.relay.error).startswith("orders from child 1 arrived corrupted: ")


def test_a_child_that_is_lost_ends_it_without_one(between):
    around = between(2)
    around.below[1].close()
    around.below[0].sendall(head(StoreRequest.SETTLE, nbytes=1))
    around.relay.close()
    assert around.relay.error is None
