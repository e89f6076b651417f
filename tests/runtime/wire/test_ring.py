"""Ring of batches: slots, counters, and waits of both sides."""

import os
import select
import threading
from contextlib import ExitStack, closing

import pytest

from csrun.base.errors import PeerLost
from csrun.executable import InputSpec, LabelRange
from csrun.runtime.step.source import RingSource
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.messages import Stop
from csrun.runtime.wire.ring import (
    BatchCounts,
    RingReader,
    RingWriter,
    prefetch_depths,
    ring_slots_for,
    slots_per_release,
)
from csrun.runtime.wire.shared import EndedByChief

INPUTS = (
    InputSpec("features", (4, 3), "float32"),
    InputSpec("labels", (4,), "int32", (LabelRange(10, 3),)),
)


@pytest.fixture
def ring():
    """Writer and reader of a ring of two slots, each with its chief's channel end."""
    with ExitStack() as stack:
        ends = [
            stack.enter_context(closing(c)) for _ in "wr" for c in channel_pair("peer", "chief")
        ]
        writer = stack.enter_context(closing(RingWriter(INPUTS, 2, ends[1])))
        parts = tuple(os.dup(d) for d in writer.descriptors)
        reader = stack.enter_context(closing(RingReader(parts, INPUTS, 2, ends[3])))
        yield writer, reader, ends


def test_a_slot_is_free_after_its_last_reader():
    """Each reads every batch; a streamer waits for the slowest."""
    chief, control = channel_pair("streamer", "chief")
    with closing(chief), closing(control), closing(RingWriter(INPUTS, 2, control, 2)) as writer:
        memory, *counters = map(os.dup, writer.descriptors)
        rings = [(memory, *counters[:2]), (os.dup(memory), *counters[2:])]
        fast, slow = (RingReader(ring, INPUTS, 2, chief) for ring in rings)
        with closing(fast), closing(slow):
            for number in range(2):
                writer.reserve().arrays[0][...] = number
                writer.publish(BatchCounts(4, (4,)), number)
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


def test_room_that_comes_between_looking_and_waiting_wakes_a_writer(ring):
    """The descriptor it waits for is readable, whichever slot was free before."""
    writer, reader, _ = ring
    for number in range(2):
        writer.reserve()
        writer.publish(BatchCounts(4, (4,)), number)
    assert not writer.ready()
    for _ in range(2):
        reader.take()
        reader.release()
    poll = select.poll()
    poll.register(writer.room, select.POLLIN)
    assert poll.poll(0)


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
    """Slots that the writer has after each batch: all but two of a short ring, at most four."""
    chief, control = channel_pair("streamer", "chief")
    with closing(chief), closing(control), closing(RingWriter(INPUTS, slots, control)) as writer:
        free = writer.descriptors[2]
        parts = tuple(os.dup(d) for d in writer.descriptors)
        assert _count(free) == slots
        found = []
        with closing(RingReader(parts, INPUTS, slots, chief, turn=turn)) as reader:
            for index in range(len(given_back)):
                writer.publish(BatchCounts(4, (0,)), index)
                assert reader.take().header[1] == index
                reader.release()
                found.append(_count(free))
    assert found == given_back


@pytest.mark.parametrize(
    ("rings", "megabytes", "burst"),
    [(1, 1, 4), (2, 1, 4), (96, 1, 3), (1, 26, 3), (1, 30, 1), (1, 64, 1), (4, 100, 1)],
)
def test_a_burst_takes_nothing_of_what_is_ahead(rings, megabytes, burst):
    """If memory holds fewer than the 16 batches intended, none of them waits for others to be

    returned.
    """
    slots = ring_slots_for(rings, (InputSpec("features", (megabytes, 1 << 18), "float32"),))
    assert slots_per_release(slots, prefetch_depths(rings)) == burst


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
            writer.publish(BatchCounts(4, (index,)), index)

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
    """One before the pass starts, one after: its streamer learns of it too late."""
    writer, reader, _ = ring
    source = RingSource([reader], 0)
    writer.reserve()
    writer.publish(BatchCounts(4, (0,)), 0)
    source.begin(0, 1)
    writer.reserve()
    writer.publish(None, 1)
    assert writer.ready()
    writer.reserve()
    writer.publish(BatchCounts(3, (0,)), 0, number=1)
    taken = source.take()
    assert taken is not None
    assert taken.made.rows == 3


def test_waiting_ends_with_stop_and_with_a_lost_chief(ring):
    writer, reader, ends = ring
    ends[2].send(Stop({"loss": 1.0}))
    with pytest.raises(EndedByChief) as caught:
        reader.take()
    assert caught.value.stop.results == {"loss": 1.0}
    writer.reserve()
    writer.reserve()
    ends[0].close()
    with pytest.raises(PeerLost, match="chief"):
        writer.reserve()


@pytest.mark.parametrize(
    ("streamers", "megabytes", "slots"),
    [(1, 1, 20), (2, 1, 12), (8, 1, 6), (96, 1, 5), (1, 64, 7), (1, 400, 2), (4, 100, 2)],
)
def test_rings_are_deep_and_bounded_in_bytes(streamers, megabytes, slots):
    """16 batches over all rings, and 4 per ring that are returned together.

    At most 512 MiB, at least two per ring; a slot has a header.
    """
    batch = (InputSpec("features", (megabytes, 1 << 18), "float32"),)
    assert ring_slots_for(streamers, batch) == slots
