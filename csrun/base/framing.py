"""Frames: the encoding of messages in a byte stream, on every connection and in every file.

A frame is the length of its body as a big-endian 32-bit number, then the body. A body is not empty
and not longer than the reader's limit. A foreign sender's four bytes therefore never make a reader
wait for gigabytes, and a stream that lost synchronization fails at the next frame.
"""

import struct

HEAD = struct.Struct(">I")
MAX_BODY_BYTES = 16 << 20  # default limit: 1 MB suffices for a job of thousands of tasks


class FrameError(OSError):
    """Bytes that are not a valid frame. An OSError, so a reader treats it as a closed
    connection.
    """


def encode(body: bytes) -> bytes:
    """Encode a body as a frame.

    Raises: ValueError for a body that is empty or above the limit
    """
    if not 0 < len(body) <= MAX_BODY_BYTES:
        raise ValueError(f"a frame has 1 to {MAX_BODY_BYTES} bytes, got {len(body)}")
    return HEAD.pack(len(body)) + body


def decode(buffer: bytes | bytearray, cap: int = MAX_BODY_BYTES) -> tuple[list[bytes], int]:
    """Decode the complete frames of a buffer; return their bodies and the number of bytes consumed.

    The remaining bytes are the beginning of an incomplete frame.

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
    """Return how many bytes the first frame of a buffer lacks, as far as known; 0 if complete.

    A reader that reads at most this number never consumes bytes after the frame.

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
