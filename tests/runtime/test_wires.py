"""Channels and memory: what arrives, and what a lost peer looks like."""

import os
from contextlib import closing

import pytest

from csrun.errors import CsrunError, PeerLost
from csrun.runtime.messages import Primed, RingReady, Stop
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.memory import SharedMemory


def test_messages_keep_their_borders_and_descriptors():
    left, right = channel_pair("right", "left")
    with closing(left), closing(right), closing(SharedMemory.create("test", 4096)) as memory:
        left.send(Primed())
        left.send(RingReady(3), [memory.descriptor])
        assert right.expect(Primed) == (Primed(), [])
        message, (descriptor,) = right.expect(RingReady, descriptors=1)
        assert message == RingReady(3)
        assert not os.get_inheritable(descriptor)
        with closing(SharedMemory.attach(descriptor)) as same:
            same.bytes[7] = 42
        assert memory.bytes[7] == 42


def test_a_closed_peer_is_lost_on_both_ways():
    left, right = channel_pair("right", "left")
    left.close()
    with closing(right):
        assert right.has_ended()
        with pytest.raises(PeerLost, match="lost the connection to left"):
            right.receive()
        with pytest.raises(PeerLost):
            right.send(Primed())


def test_a_waiting_message_is_not_an_end():
    left, right = channel_pair("right", "left")
    with closing(left), closing(right):
        assert not right.has_ended()
        left.send(Stop({}))
        assert not right.has_ended()


def test_an_unexpected_message_is_a_bug_with_both_names():
    left, right = channel_pair("right", "left")
    with closing(left), closing(right):
        left.send(Primed())
        with pytest.raises(RuntimeError, match="expected Stop with 0 descriptors, got Primed"):
            right.expect(Stop)


def test_more_memory_than_there_is():
    with pytest.raises(CsrunError, match="arena needs 1,152,921,504,606,846,976 bytes of memory"):
        SharedMemory.create("arena", 1 << 60)
