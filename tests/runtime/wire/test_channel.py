"""Channels and shared memory: delivery of messages, and detection of a lost peer."""

import os
import select
import socket
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.jobs import until
from support.wires import PAIRS, altering_pair, tcp_channel_pair

from csrun.base.errors import CsrunError, PeerLost
from csrun.base.framing import HEAD, FrameError
from csrun.base.run_config import MOST, RunSettings
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.handshake import MAX_HANDSHAKE_BYTES, Frames
from csrun.runtime.wire.messages import Primed, RingReady, Stop
from csrun.runtime.wire.shared import SharedMemory
from csrun.runtime.wire.tcp import (
    ROW_BYTES,
    SUM,
    DamagedTransferError,
    TcpChannel,
    checksum,
    summed,
)


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


def test_memory_that_came_over_a_channel_keeps_no_descriptor():
    """A wafer has one such block for each of its streamers."""
    with closing(SharedMemory.create("test", 4096)) as memory:
        descriptor = os.dup(memory.descriptor)
        before = os.listdir("/proc/self/fd")
        attached = SharedMemory.attach(descriptor)
        assert len(os.listdir("/proc/self/fd")) == len(before) - 1
        attached.close()


def test_an_array_over_memory_outlives_its_closing_and_the_last_one_unmaps_it():
    name = "csrun-outlived"
    memory = SharedMemory.create("outlived", 1 << 20)
    view = memory.bytes[5:9].view(np.uint32)
    memory.close()
    view[:] = 42
    assert view[0] == 42
    assert name in Path("/proc/self/maps").read_text()
    del view
    assert name not in Path("/proc/self/maps").read_text()


@pytest.fixture(params=PAIRS)
def pair(request):
    """Two connected channels: the end with peer `right`, and that with peer `left`."""
    left, right = PAIRS[request.param]("right", "left")
    with closing(left), closing(right):
        yield left, right


def test_messages_come_in_order_and_whole(pair):
    left, right = pair
    results = {f"metric {i}": i / 3 for i in range(1000)}
    for count in (1, 1000, 10):
        left.send(Stop(dict(list(results.items())[:count])))
        right.send(Primed())
    for count in (1, 1000, 10):
        assert right.expect(Stop)[0].results == dict(list(results.items())[:count])
        assert left.expect(Primed) == (Primed(), [])


def test_a_closed_peer_is_lost_on_both_ways(pair):
    left, right = pair
    left.close()
    until(right.has_ended)
    with pytest.raises(PeerLost, match="lost the connection to left"):
        right.receive()
    with pytest.raises(PeerLost):  # TCP takes the first and learns from its answer
        for _ in range(100):
            right.send(Primed())


def test_a_waiting_message_is_not_an_end(pair):
    left, right = pair
    assert not right.has_ended()
    left.send(Stop({}))
    until(lambda: bool(select.select([right], [], [], 0)[0]))
    assert not right.has_ended()


def test_an_unexpected_message_is_a_bug_with_both_names(pair):
    left, right = pair
    left.send(Primed())
    with pytest.raises(RuntimeError, match="expected Stop with 0 descriptors, got Primed"):
        right.expect(Stop)


def test_more_memory_than_there_is():
    with pytest.raises(CsrunError, match="arena needs 1,152,921,504,606,846,976 bytes of memory"):
        SharedMemory.create("arena", 1 << 60)


def test_raw_data_follows_its_message():
    left, right = tcp_channel_pair("right", "left")
    with closing(left), closing(right):
        sent = np.arange(24, dtype="f").reshape(2, 3, 4)
        left.send(Primed())
        left.send_array(sent)
        right.expect(Primed)
        got = np.empty_like(sent)
        right.receive_array(got)
        np.testing.assert_array_equal(got, sent, strict=True)
        left.send_array(sent[0])
        left.close()
        with pytest.raises(PeerLost, match="left"):
            right.receive_array(got)


def test_a_message_of_endless_length_is_a_lost_peer_and_takes_no_memory():
    left, right = tcp_channel_pair("right", "left")
    with closing(left), closing(right):
        with socket.socket(fileno=os.dup(left.fileno())) as same:
            same.sendall(summed(b"\xff\xff\xff\xff"))
        with pytest.raises(PeerLost, match="left"):
            right.receive()


HEAD_BYTES = HEAD.size + SUM.size


@pytest.mark.parametrize(
    "byte",
    [0, HEAD.size - 1, HEAD.size, HEAD_BYTES, HEAD_BYTES + 7, HEAD_BYTES + 8],
    ids=["length", "length", "its sum", "message", "message", "its sum"],
)
def test_an_altered_message_is_not_obeyed(byte):
    """Stop({}) has eight bytes or more; bytes missing after an altered length are not awaited."""
    with altering_pair(byte) as (first, second):
        left, right = TcpChannel(first, "right"), TcpChannel(second, "left")
        right.send(Stop({"loss": 1.5}))
        with pytest.raises(DamagedTransferError, match="messages from right arrived corrupted"):
            left.receive()


def test_no_descriptor_goes_to_another_machine():
    left, right = tcp_channel_pair("right", "left")
    with closing(left), closing(right), pytest.raises(ValueError, match="right is on another mach"):
        left.send(Primed(), [0])


@pytest.mark.parametrize("length", [0, MAX_HANDSHAKE_BYTES + 1, 2**32 - 1])
def test_a_word_of_the_challenge_is_short(length):
    left, right = tcp_channel_pair("right", "left")
    with closing(left), closing(right):
        left.bulk.sendall(length.to_bytes(4, "big"))
        with pytest.raises(FrameError, match=f"1 to {MAX_HANDSHAKE_BYTES} bytes, got {length}"):
            Frames(right.bulk).receive_whole()


def test_words_of_the_challenge_come_in_any_pieces():
    left, right = tcp_channel_pair("right", "left")
    with closing(left), closing(right):
        left.bulk.sendall(b"\0\0")
        frames = Frames(right.bulk)
        assert frames.receive() is None
        left.bulk.sendall(b"\0\5hello and what comes after it")
        assert frames.receive_whole() == b"hello"
        assert right.bulk.recv(100) == b" and what comes after it"


@pytest.mark.parametrize("length", [1, 17, ROW_BYTES, 3 * ROW_BYTES + 5])
def test_a_checksum_is_another_one_of_what_is_altered(length):
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    whole = checksum(data.data)
    for place in {0, length // 2, length - 1}:
        for bit in range(8):
            data[place] ^= 1 << bit
            assert checksum(data.data) != whole
            data[place] ^= 1 << bit
    assert checksum(data[ROW_BYTES:].data, checksum(data[:ROW_BYTES].data)) == whole
    if length > 2 * ROW_BYTES:
        first, second = data[:ROW_BYTES].copy(), data[ROW_BYTES : 2 * ROW_BYTES].copy()
        data[:ROW_BYTES], data[ROW_BYTES : 2 * ROW_BYTES] = second, first
        assert checksum(data.data) != whole


@pytest.mark.parametrize("name", ["trace_steps", "weight_store_memory", "seed"])
def test_settings_hold_no_number_that_no_message_can(name: str) -> None:
    def settings(number: int) -> RunSettings:
        value = [1, number] if name == "trace_steps" else number
        return msgspec.convert({name: value}, RunSettings)

    largest = settings(MOST)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(largest), type=RunSettings) == largest
    with pytest.raises(msgspec.ValidationError, match=name):
        settings(MOST + 1)
