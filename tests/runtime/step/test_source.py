"""Batches through the ring and through the in-process source: the same suite for both."""

import os
import select
import threading
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest
from support.wires import tcp_channel_pair

from csrun.base.errors import CsrunError, PeerLost
from csrun.data.delivery import Delivery
from csrun.data.operators import StageClock
from csrun.executable import InputSpec, LabelRange
from csrun.runtime.remote.ring import ROOM, BatchRelay, BatchSender
from csrun.runtime.roles import streamer
from csrun.runtime.step.source import InProcessSource, RingSource
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.messages import (
    Primed,
    RingReady,
    RunSettings,
    StartStreaming,
    Stop,
    TellOrder,
)
from csrun.runtime.wire.ring import Made, RingReader, RingWriter, ahead_of, burst_of, ring_slots_for
from csrun.runtime.wire.shared import Interrupted
from csrun.runtime.wire.tcp import summed

INPUTS = (
    InputSpec("features", (4, 3), "float32"),
    InputSpec("labels", (4,), "int32", (LabelRange(10, 3),)),
)


class Data:
    """`count` batches of float64 features and int64 labels; the last has 3 rows."""

    def __init__(self, count: int) -> None:
        generator = np.random.default_rng(1)
        self.all = [
            (generator.random((4, 3)), generator.integers(0, 10, 4)) for _ in range(count - 1)
        ]
        self.all.append((generator.random((3, 3)), generator.integers(0, 10, 3)))
        self.clock = StageClock()

    def names(self, arrays):
        return [spec.name for spec in INPUTS[:arrays]]

    def deliveries(self, start, stride):
        return (Delivery(batch, list) for batch in self.all[start::stride])


def test_a_slot_is_free_when_the_last_of_several_readers_has_given_it_back():
    """Each reads every batch; a streamer waits for the slowest."""
    chief, control = channel_pair("streamer", "chief")
    with closing(chief), closing(control), closing(RingWriter(INPUTS, 2, control, 2)) as writer:
        memory, *counters = map(os.dup, writer.descriptors)
        rings = [(memory, *counters[:2]), (os.dup(memory), *counters[2:])]
        fast, slow = (RingReader(ring, INPUTS, 2, chief) for ring in rings)
        with closing(fast), closing(slow):
            for number in range(2):
                writer.reserve().arrays[0][...] = number
                writer.publish(Made(4, (4,)), number)
            for number in range(2):
                assert (fast.take().arrays[0] == number).all()
                fast.release()
            assert not writer.ready()
            poll = select.poll()
            poll.register(writer.room, select.POLLIN)
            assert not poll.poll(0)
            assert (slow.take().arrays[0] == 0).all()
            slow.release()
            assert poll.poll(0)
            assert writer.ready() == 1


def test_a_remote_slot_is_free_when_the_last_of_several_readers_has_given_it_back():
    """More than the ring's slots come, each to both readers, and none before there is room."""
    data, slots = Data(9), 2
    chief, control = tcp_channel_pair("streamer", "chief")
    with ExitStack() as stack:
        relay, *_ = (stack.enter_context(closing(part)) for part in (BatchRelay(), chief, control))
        chief.send(StartStreaming(INPUTS, 0, 1, None, slots))
        thread = threading.Thread(target=streamer.serve, args=(control, [data]))
        thread.start()
        chief.expect(RingReady)
        parts = relay.add(chief, 0, INPUTS, slots, 2)
        (memory, *counters), (_, *others) = parts
        rings = [(memory, *counters), (os.dup(memory), *others)]
        chief.expect(Primed)
        readers = [RingReader(ring, INPUTS, slots, chief) for ring in rings]
        sources = [RingSource([stack.enter_context(closing(each))], 0) for each in readers]
        for number in range(len(data.all)):
            for source in sources if number % 2 else sources[::-1]:
                features = source.take().batch[0]
                expected = data.all[number][0].astype("f")
                np.testing.assert_array_equal(features[: len(expected)], expected)
                source.release()
        chief.send(Stop({}))
        thread.join()


def test_room_that_comes_between_looking_and_waiting_wakes_a_writer():
    """What it is to wait for is readable then, whoever was free before."""
    chief, control = channel_pair("streamer", "chief")
    with ExitStack() as stack:
        writer = RingWriter(INPUTS, 2, control)
        parts = tuple(map(os.dup, writer.descriptors))
        reader = RingReader(parts, INPUTS, 2, chief)
        for part in (chief, control, writer, reader):
            stack.enter_context(closing(part))
        for number in range(2):
            writer.reserve()
            writer.publish(Made(4, (4,)), number)
        assert not writer.ready()
        for _ in range(2):
            reader.take()
            reader.release()
        poll = select.poll()
        poll.register(writer.room, select.POLLIN)
        assert poll.poll(0)


def test_room_that_another_ring_hears_of_is_used(monkeypatch):
    """Two rings afar have one connection: whoever asks hears what is said of either."""
    chief, control = tcp_channel_pair("streamer", "chief")
    room = summed(ROOM.pack(0, 1))
    ready, both, told = BatchSender.ready, threading.Event(), []

    def late(ring):
        """The first one's room is told just behind its own question."""
        found = ready(ring)
        if both.is_set() and not told and not found:
            told.append(chief.bulk.send(room))
        return found

    monkeypatch.setattr(BatchSender, "ready", late)
    with closing(chief), closing(control):
        for source in range(2):
            chief.send(StartStreaming(INPUTS, 0, 1, None, 2, source=source))
        thread = threading.Thread(target=streamer.serve, args=(control, [Data(2)]))
        thread.start()
        for _ in range(2):
            chief.expect(RingReady)
        both.set()
        chief.send(TellOrder(0, b""))
        chief.bulk.settimeout(30)
        assert chief.bulk.recv(1)
        chief.send(Stop({}))
        thread.join()


SLOTS = 6  # as of many streamers: of these, 4 go back at once
KINDS = ["in process", "1 ring", "2 rings", "5 rings", "1 remote", "2 remote", "5 remote"]


@pytest.fixture(params=KINDS)
def open_source(request):
    """A function (data, first) → source; what it started ends with the test."""
    with ExitStack() as stack:
        if request.param == "in process":
            yield lambda data, first: InProcessSource(data, INPUTS, first, RunSettings())
        else:
            rings = int(request.param.split()[0])
            make = _remote_source if "remote" in request.param else _ring_source
            yield lambda data, first: make(stack, data, first, rings)


def _ring_source(stack: ExitStack, data, first: int, rings: int, cpus=()) -> RingSource:
    readers = []
    for turn in range(rings):
        chief, control = channel_pair("streamer", "chief")
        start = first + (turn - first) % rings
        chief.send(StartStreaming(INPUTS, start, rings, None, SLOTS))
        thread = threading.Thread(target=streamer.serve, args=(control, [data], cpus))
        thread.start()
        _, parts = chief.expect(RingReady, descriptors=3)
        reader = RingReader(tuple(parts), INPUTS, SLOTS, chief, turn=turn)
        readers.append(stack.enter_context(closing(reader)))
        stack.enter_context(closing(control))
        stack.enter_context(closing(chief))
        stack.callback(thread.join)
        stack.callback(chief.send, Stop({}))
        # the reader would take "Primed" for the end of the run
        chief.receive()
    return RingSource(readers, first)


def _remote_source(stack: ExitStack, data, first: int, rings: int, cpus=()) -> RingSource:
    """Streamers over TCP; the relay has the rings that the source reads."""
    readers = []
    relay = BatchRelay()
    chiefs = []
    for turn in range(rings):
        chief, control = tcp_channel_pair("streamer", "chief")
        start = first + (turn - first) % rings
        chief.send(StartStreaming(INPUTS, start, rings, None, SLOTS))
        thread = threading.Thread(target=streamer.serve, args=(control, [data], cpus))
        thread.start()
        chief.expect(RingReady)
        (parts,) = relay.add(chief, 0, INPUTS, SLOTS)
        reader = RingReader(parts, INPUTS, SLOTS, chief, turn=turn)
        readers.append(stack.enter_context(closing(reader)))
        stack.enter_context(closing(control))
        stack.enter_context(closing(chief))
        stack.callback(thread.join)
        stack.callback(chief.send, Stop({}))
        chiefs.append(chief)
    stack.enter_context(closing(relay))
    for chief in chiefs:
        chief.expect(Primed)
    return RingSource(readers, first)


@pytest.mark.parametrize("first", [0, 3])
def test_batches_come_in_order_converted_and_filled_up(open_source, first):
    data = Data(9)
    source = open_source(data, first)
    for features, labels in data.all[first:]:
        taken = source.take()
        (got_features, got_labels), rows = taken.batch, taken.made.rows
        assert (rows, taken.made.counts) == (len(labels), (np.sum(labels != 3),))
        np.testing.assert_array_equal(got_features[:rows], features.astype("f"), strict=True)
        np.testing.assert_array_equal(got_labels[:rows], labels.astype("i"), strict=True)
        np.testing.assert_array_equal(got_labels[rows:], got_labels[: 4 - rows])
        np.testing.assert_array_equal(got_features[rows:], got_features[: 4 - rows])
        source.release()
    assert source.take() is None


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            (np.zeros((4, 3)), np.array([0, 1, 12, 3])),
            r"batch 0, row 2 \(sample 2 of the run\): labels must be in 0..9, got 12",
        ),
        ((np.zeros((4, 3)), np.array([0, -1, 1, 3])), "got -1"),
        ((np.zeros((4, 5)), np.zeros(4, int)), r"features must have shape \[4, 3\]"),
        ((np.zeros((5, 3)), np.zeros(5, int)), r"got \[5, 3\]"),
        ((np.zeros((4, 3)), np.zeros(3, int)), "labels has 3 rows, the others 4"),
        ((np.zeros((4, 3)), np.zeros(4)), "labels must be int32 .*, got float64: convert"),
        ((np.zeros((4, 3)),), "the model takes 2 arrays, input_fn gave 1"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(batch, message):
    data = Data(2)
    data.all[0] = batch
    with pytest.raises(CsrunError, match=message):
        InProcessSource(data, INPUTS, 0, RunSettings()).take()


@pytest.fixture
def ring():
    """A writer and a reader of one ring of two slots, each with its chief's channel end."""
    with ExitStack() as stack:
        ends = [
            stack.enter_context(closing(c)) for _ in "wr" for c in channel_pair("peer", "chief")
        ]
        writer = stack.enter_context(closing(RingWriter(INPUTS, 2, ends[1])))
        parts = tuple(os.dup(d) for d in writer.descriptors)
        reader = stack.enter_context(closing(RingReader(parts, INPUTS, 2, ends[3])))
        yield writer, reader, ends


@pytest.mark.parametrize(
    ("slots", "turn", "given_back"),
    [
        (2, 5, [1, 1, 1, 1, 1, 1, 1, 1]),
        (4, 0, [0, 2, 0, 2, 0, 2, 0, 2]),
        (20, 0, [0, 0, 0, 4, 0, 0, 0, 4]),
        (20, 1, [0, 0, 3, 0, 0, 0, 4, 0]),
        (20, 7, [1, 0, 0, 0, 4, 0, 0, 0]),
    ],
)
def test_a_writer_is_woken_for_a_burst(slots, turn, given_back):
    """What the writer is given after each batch: all but two of a short ring, at most four."""
    chief, control = channel_pair("streamer", "chief")
    with closing(chief), closing(control), closing(RingWriter(INPUTS, slots, control)) as writer:
        free = writer.descriptors[2]
        parts = tuple(os.dup(d) for d in writer.descriptors)
        assert _count(free) == slots
        found = []
        with closing(RingReader(parts, INPUTS, slots, chief, turn=turn)) as reader:
            for index in range(len(given_back)):
                writer.publish(Made(4, (0,)), index)
                assert reader.take().header[1] == index
                reader.release()
                found.append(_count(free))
    assert found == given_back


@pytest.mark.parametrize(
    ("rings", "megabytes", "burst"),
    [(1, 1, 4), (2, 1, 4), (96, 1, 3), (1, 26, 3), (1, 30, 1), (1, 64, 1), (4, 100, 1)],
)
def test_a_burst_takes_nothing_of_what_is_ahead(rings, megabytes, burst):
    """Where memory holds fewer than the 16 batches that should be, none of them waits for others
    to be given back.
    """
    slots = ring_slots_for(rings, (InputSpec("features", (megabytes, 1 << 18), "float32"),))
    assert burst_of(slots, ahead_of(rings)) == burst


def test_a_streamer_gives_way_to_who_computes():
    """Policy, niceness and CPUs of its thread when it makes a batch; this thread's are as before.

    Over TCP the wafer is elsewhere: nothing changes.
    """
    found = []

    def here():
        policy, niceness = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        return policy, niceness, os.sched_getaffinity(0)

    class Watched(Data):
        def deliveries(self, start, stride):
            found.append(here())
            return super().deliveries(start, stride)

    before = here()
    cpus = {min(before[2])}
    with ExitStack() as stack:
        for make in (_ring_source, _remote_source):
            assert make(stack, Watched(3), 0, 1, cpus).take() is not None
    assert found == [(os.SCHED_BATCH, 10, cpus), before]
    assert here() == before


def _count(counter: int) -> int:
    try:
        return os.eventfd_read(counter)
    except BlockingIOError:
        return 0


def test_a_full_ring_waits_for_its_reader(ring):
    writer, reader, _ = ring
    order = []

    def write() -> None:
        for index in range(5):
            writer.reserve()
            order.append(("write", index))
            writer.publish(Made(4, (index,)), index)

    thread = threading.Thread(target=write)
    thread.start()
    for index in range(5):
        header = reader.take().header
        assert [*header[:2], *header[7:]] == [4, index, index]
        order.append(("read", index))
        reader.release()
    thread.join()
    for index in range(2, 5):
        assert order.index(("read", index - 2)) < order.index(("write", index))


def test_slots_of_another_pass_are_thrown_away_whenever_they_come(ring):
    """One before the pass begins, one behind it: its streamer has heard of that too late."""
    writer, reader, _ = ring
    source = RingSource([reader], 0)
    writer.reserve()
    writer.publish(Made(4, (0,)), 0)
    source.begin(0, 1)
    writer.reserve()
    writer.publish(None, 1)
    assert writer.ready()
    writer.reserve()
    writer.publish(Made(3, (0,)), 0, number=1)
    taken = source.take()
    assert taken is not None
    assert taken.made.rows == 3


def test_waiting_ends_with_stop_and_with_a_lost_chief(ring):
    writer, reader, ends = ring
    ends[2].send(Stop({"loss": 1.0}))
    with pytest.raises(Interrupted) as caught:
        reader.take()
    assert caught.value.stop.results == {"loss": 1.0}
    writer.reserve()
    writer.reserve()
    ends[0].close()
    with pytest.raises(PeerLost, match="chief"):
        writer.reserve()


class SlowData(Data):
    """Every batch takes 5 ms, and is made when it is asked for."""

    def deliveries(self, start, stride):
        for delivery in super().deliveries(start, stride):
            time.sleep(0.005)
            yield delivery


def test_the_source_tells_what_each_streamers_batches_took(open_source):
    data = SlowData(10)
    source = open_source(data, 0)
    for _ in data.all[:7]:
        source.take()
        source.release()
    uses = source.used()
    assert sum(use.batches for use in uses) == 7
    for use in uses:
        assert use.produce_s >= 0.005 * use.batches
        assert use.wait_s > 0
    source.take()
    (use,) = [use for use in source.used() if use.batches]
    assert use.batches == 1
    assert use.produce_s >= 0.005


@pytest.mark.parametrize(
    ("streamers", "megabytes", "slots"),
    [(1, 1, 20), (2, 1, 12), (8, 1, 6), (96, 1, 5), (1, 64, 7), (1, 400, 2), (4, 100, 2)],
)
def test_rings_are_deep_and_bounded_in_bytes(streamers, megabytes, slots):
    """16 batches over all rings, and 4 a ring that go back at once; in 512 MiB at most, two a ring
    at least; a slot has a header.
    """
    batch = (InputSpec("features", (megabytes, 1 << 18), "float32"),)
    assert ring_slots_for(streamers, batch) == slots
