"""Batches through the ring and through the in-process source: one suite for both."""

import os
import threading
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest
from support.wires import tcp_channel_pair

from csrun.base.errors import CsrunError
from csrun.base.run_config import RunSettings
from csrun.data import Dataset
from csrun.data.delivery import Delivery
from csrun.data.input_operators import StageClock
from csrun.executable import InputSpec, LabelRange
from csrun.executable.arrays import ReusedBatch
from csrun.executable.replica_plan import inputs_of_part
from csrun.runtime.remote.ring import ROOM, BatchRelay, BatchSender
from csrun.runtime.roles import streamer
from csrun.runtime.step.source import InProcessSource, RingSource
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.messages import DataOrderPart, Primed, RingReady, StartStreaming, Stop
from csrun.runtime.wire.ring import END_OF_DATA, BatchSlot, RingReader
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


def test_a_remote_slot_is_free_after_its_last_reader():
    """More batches than slots, each to both readers, and none before a slot is free."""
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


def test_a_slot_freed_by_another_rings_message_is_used(monkeypatch):
    """Two remote rings share a connection: either one receives messages of both."""
    chief, control = tcp_channel_pair("streamer", "chief")
    room = summed(ROOM.pack(0, 1))
    ready, both, data_order = BatchSender.ready, threading.Event(), []

    def late(ring):
        """The first ring's free slot is reported just after its own query."""
        found = ready(ring)
        if both.is_set() and not data_order and not found:
            data_order.append(chief.bulk.send(room))
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
        chief.send(DataOrderPart(0, b""))
        chief.bulk.settimeout(30)
        assert chief.bulk.recv(1)
        chief.send(Stop({}))
        thread.join()


SLOTS = 6  # as of many streamers: of these, 4 go back at once
KINDS = ["in process", "1 ring", "2 rings", "5 rings", "1 remote", "2 remote", "5 remote"]


@pytest.fixture(params=KINDS)
def open_source(request):
    """Function (data, first) -> source, whose threads end with the test."""
    with ExitStack() as stack:
        if request.param == "in process":
            yield lambda data, first: InProcessSource(data, INPUTS, first, RunSettings())
        else:
            rings = int(request.param.split()[0])
            make = _remote_source if "remote" in request.param else _ring_source
            yield lambda data, first: make(stack, data, first, rings)


def _ring_source(stack: ExitStack, data, first: int, rings: int, cpus=(), parts=1) -> RingSource:
    readers, inputs = [], inputs_of_part(INPUTS, parts)
    for turn in range(rings):
        chief, control = channel_pair("streamer", "chief")
        start = first * parts + (turn - first * parts) % rings
        chief.send(StartStreaming(inputs, start, rings, None, SLOTS, parts=parts))
        thread = threading.Thread(target=streamer.serve, args=(control, [data], cpus))
        thread.start()
        _, descriptors = chief.expect(RingReady, descriptors=3)
        reader = RingReader(tuple(descriptors), inputs, SLOTS, chief, turn=turn)
        readers.append(stack.enter_context(closing(reader)))
        stack.enter_context(closing(control))
        stack.enter_context(closing(chief))
        stack.callback(thread.join)
        stack.callback(chief.send, Stop({}))
        # the reader would take "Primed" for the end of the run
        chief.receive()
    return RingSource(readers, first, parts=parts)


def _remote_source(stack: ExitStack, data, first: int, rings: int, cpus=(), parts=1) -> RingSource:
    """Streamers over TCP; the relay has the rings that the source reads."""
    readers, inputs = [], inputs_of_part(INPUTS, parts)
    relay = BatchRelay()
    chiefs = []
    for turn in range(rings):
        chief, control = tcp_channel_pair("streamer", "chief")
        start = first * parts + (turn - first * parts) % rings
        chief.send(StartStreaming(inputs, start, rings, None, SLOTS, parts=parts))
        thread = threading.Thread(target=streamer.serve, args=(control, [data], cpus))
        thread.start()
        chief.expect(RingReady)
        (descriptors,) = relay.add(chief, 0, inputs, SLOTS)
        reader = RingReader(descriptors, inputs, SLOTS, chief, turn=turn)
        readers.append(stack.enter_context(closing(reader)))
        stack.enter_context(closing(control))
        stack.enter_context(closing(chief))
        stack.callback(thread.join)
        stack.callback(chief.send, Stop({}))
        chiefs.append(chief)
    stack.enter_context(closing(relay))
    for chief in chiefs:
        chief.expect(Primed)
    return RingSource(readers, first, parts=parts)


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
        ((np.zeros((4, 3)),), "the model takes 2 arrays, input_fn returned 1"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(batch, message):
    data = Data(2)
    data.all[0] = batch
    with pytest.raises(CsrunError, match=message):
        InProcessSource(data, INPUTS, 0, RunSettings()).take()


def test_a_streamer_yields_the_cpu_to_computation():
    """Policy, niceness and CPUs of its thread while it makes a batch; this thread's do not change.

    Over TCP, with a remote wafer, nothing changes.
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


class SlowData(Data):
    """Data with batches that take 5 ms, made on demand."""

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


class Slots:
    """Ring with all slots filled: parts of its streamer, then the end of the data."""

    slots = 8

    def __init__(self, parts) -> None:
        self._left, self.released = list(parts), 0

    def take(self):
        number, rows, labels = self._left[0] if self._left else (0, END_OF_DATA, 0)
        header = np.array([rows, number, 10, 0, 10, 1, 0, labels])
        return BatchSlot(header, ReusedBatch([np.full((2, 3), number, "f"), np.full(2, number)]))

    def release(self):
        self.released += 1
        self._left[:1] = []


@pytest.mark.parametrize("streamers", [2, 3, 4])
@pytest.mark.parametrize("first", [0, 1, 5])
def test_the_parts_of_a_batch_come_from_one_streamer_after_another(streamers, first):
    batches, parts = 7, 2
    made = [(number, 2, number % 3) for number in range(batches * parts)]
    rings = [
        Slots([one for one in made[first * parts :] if one[0] % streamers == turn])
        for turn in range(streamers)
    ]
    source = RingSource(rings, first, parts=parts)
    for number in range(first, batches):
        taken = source.take()
        assert taken is source.take()
        assert [part[1].tolist() for part in taken.batch.parts] == [
            [number * parts + part] * 2 for part in range(parts)
        ]
        assert taken.made.rows == 4
        assert taken.made.counts == (sum(made[number * parts + part][2] for part in range(parts)),)
        np.testing.assert_array_equal(
            taken.batch.whole[1], np.repeat(np.arange(parts) + number * parts, 2)
        )
        source.release()
    assert sum(ring.released for ring in rings) == (batches - first) * parts
    assert sum(use.batches for use in source.used()) == (batches - first) * parts
    assert source.take() is None


@pytest.mark.parametrize("make", [_ring_source, _remote_source])
@pytest.mark.parametrize("streamers", [2, 3])
def test_streamers_make_the_parts_of_a_batch(streamers, make):
    """A function after `batch` gets the share of one replica."""
    generator, sizes = np.random.default_rng(1), set()
    features = generator.random((21, 3)).astype("f")
    labels = generator.integers(0, 10, 21).astype("i")

    def seen(x, y):
        sizes.add(len(x))
        return x, y

    data = Dataset.from_arrays(features, labels).batch(4, drop_remainder=True).map(seen)
    with ExitStack() as stack:
        source = make(stack, data, 1, streamers, parts=2)
        for number in range(1, 5):
            rows = slice(4 * number, 4 * number + 4)
            taken = source.take()
            np.testing.assert_array_equal(taken.batch.whole[0], features[rows])
            np.testing.assert_array_equal(taken.batch.whole[1], labels[rows])
            assert taken.made.rows == 4
            assert taken.made.counts == (np.count_nonzero(labels[rows] != 3),)
            source.release()
        assert source.take() is None
    assert sizes == {2}
