"""Frames: the encoding of messages in a stream of bytes, on every wire and in every file.

A frame is the length of its body in four bytes, the most significant first, and the body. A body
is never empty, and never longer than its reader's cap: so a stranger's four bytes make nobody
wait for gigabytes, and a stream that has lost its beat is noticed at the next frame.
"""

import struct

HEAD = struct.Struct(">I")
MAX_BODY_BYTES = 16 << 20  # where nothing smaller is asked for: a job of thousands of tasks is 1 MB


class FrameError(OSError):
    """Bytes that are no frame. An OSError: to its reader a connection that has come to its end."""


def encode(body: bytes) -> bytes:
    """The frame of a body.

    Raises: ValueError for a body that no reader would take
    """
    if not 0 < len(body) <= MAX_BODY_BYTES:
        raise ValueError(f"a frame has 1 to {MAX_BODY_BYTES} bytes, got {len(body)}")
    return HEAD.pack(len(body)) + body


def decode(buffer: bytes | bytearray, cap: int = MAX_BODY_BYTES) -> tuple[list[bytes], int]:
    """The bodies of all frames that are whole in a buffer, and how many bytes these take up.

    The bytes after them are the beginning of an incomplete frame.

    Raises: FrameError
    """
    bodies, start = [], 0
    while (begin := start + HEAD.size) <= len(buffer):
        end = begin + _length(buffer, start, cap)
        if end > len(buffer):
            break
        bodies.append(bytes(buffer[begin:end]))
        start = end
    return bodies, start


def missing_bytes(buffer: bytes | bytearray, cap: int = MAX_BODY_BYTES) -> int:
    """Bytes that the first frame of a buffer lacks, as far as known; 0 when it is complete.

    Who reads no more than that never takes bytes of what follows the frame.

    Raises: FrameError
    """
    if len(buffer) < HEAD.size:
        return HEAD.size - len(buffer)
    return max(0, HEAD.size + _length(buffer, 0, cap) - len(buffer))


def _length(buffer: bytes | bytearray, at: int, cap: int) -> int:
    (length,) = HEAD.unpack_from(buffer, at)
    if not 0 < length <= cap:
        raise FrameError(f"a frame has 1 to {cap} bytes, got {length}")
    return int(length)
