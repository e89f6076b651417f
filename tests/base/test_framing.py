"""Frames in a stream of bytes, received in pieces of any size."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csrun.base import framing

BODIES = st.lists(st.binary(min_size=1, max_size=50), max_size=8)


def test_a_frame_is_its_length_in_network_order_and_the_body() -> None:
    assert framing.encode(b"abc") == struct.pack("!I", 3) + b"abc" == b"\0\0\0\x03abc"


@given(bodies=BODIES, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_bodies_come_out_as_they_went_in_wherever_the_stream_is_cut(
    bodies: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(framing.encode, bodies))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    received, found = bytearray(), []
    for start, end in pairwise(edges):
        received += stream[start:end]
        complete, taken = framing.decode(received)
        del received[:taken]
        found += complete
    assert found == bodies
    assert not received


@given(body=st.binary(min_size=1, max_size=50), behind=st.binary(max_size=20))
def test_who_reads_what_is_missing_takes_no_byte_of_what_follows(
    body: bytes, behind: bytes
) -> None:
    stream = framing.encode(body) + behind
    frame = b""
    while missing := framing.missing_bytes(frame):
        frame += stream[len(frame) : len(frame) + missing]
    assert frame + behind == stream


def test_the_beginning_of_a_frame_is_left_for_the_next_time() -> None:
    whole, begun = framing.encode(b"one"), framing.encode(b"two")[:5]
    assert framing.decode(whole + begun) == ([b"one"], len(whole))
    assert framing.decode(begun[:2]) == ([], 0)
    assert framing.missing_bytes(begun) == 2


def test_a_body_of_the_caps_length_is_taken_and_a_longer_one_refused_at_its_head() -> None:
    assert framing.decode(framing.encode(b"x" * 10), cap=10)[0] == [b"x" * 10]
    head = struct.pack("!I", 11)
    for read in (framing.decode, framing.missing_bytes):
        with pytest.raises(framing.FrameError, match="1 to 10 bytes, got 11"):
            read(head, 10)


def test_garbage_is_refused_and_makes_nobody_wait() -> None:
    for garbage in (b"GET / HTTP/1.1\r\n", b"\xff" * 8, b"\0\0\0\0more"):
        with pytest.raises(framing.FrameError):
            framing.decode(garbage)
    with pytest.raises(framing.FrameError):  # behind a good one, too
        framing.decode(framing.encode(b"good") + b"\xff" * 4)


@pytest.mark.parametrize("length", [0, framing.MAX_BODY_BYTES + 1])
def test_what_no_reader_would_take_is_not_sent(length: int) -> None:
    with pytest.raises(ValueError, match=f"got {length}"):
        framing.encode(bytes(length))


@given(st.binary(max_size=60))
def test_any_bytes_are_frames_the_beginning_of_one_or_refused(data: bytes) -> None:
    try:
        bodies, taken = framing.decode(data, cap=40)
    except framing.FrameError:
        return
    assert b"".join(map(framing.encode, bodies)) == data[:taken]
