"""The server's end of its tasks' link: the sender of each message is checked."""

import os
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.stored import UNREADABLE
from csrun.context import JobFile, SpawnWafer
from csrun.context.link import Message

_DATAGRAM_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_decoder = msgspec.msgpack.Decoder(Message)


def bind_link(job_dir: Path, name: str) -> socket.socket:
    """The socket in a job's folder that its tasks' messages come to, with who has sent each."""
    # A socket path is limited to 108 bytes, a job's folder is not: go through its descriptor.
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    folder = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY)
    # bind(2) makes the file with the umask; a chmod after it would come too late.
    mask = os.umask(0o077)
    try:
        link.bind(f"/proc/self/fd/{folder}/{name}")
    finally:
        os.umask(mask)
        os.close(folder)
    return link


def receive(link: socket.socket) -> Message | None:
    """The next message of a task; None, with a word in the log, for what is no message.

    What another account has sent is dropped undecoded.
    """
    data, ancillary, _, _ = link.recvmsg(_DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    sender = _sender(ancillary)
    if sender != os.getuid():
        print(f"dropped a message of another account, uid {sender}", file=sys.stderr)
        return None
    try:
        message: Message = _decoder.decode(data)
    except UNREADABLE as error:
        print(f"malformed message: {error}", file=sys.stderr)
        return None
    return message


def _sender(ancillary: Iterable[tuple[int, int, bytes]]) -> int | None:
    """The account that the kernel says has sent a datagram; unix(7), SCM_CREDENTIALS."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, uid, _ = _CREDENTIALS.unpack(data)
            return int(uid)
    return None


def is_permitted(message: Message, job: JobFile) -> bool:
    """True if the job may have what a task asks for: a wafer is of a system of its site, and of
    those that it was given, where a scheduler gives them.

    A refused request is logged.
    """
    if not isinstance(message, SpawnWafer):
        return True
    from csrun.site import load  # reads YAML, which a server of tasks without a wafer never does

    try:
        known = job.systems or [each.name for each in load(job.site).systems]
    except CsrunError as error:
        print(f"wafer of {message.system} refused: {error}", file=sys.stderr)
        return False
    if message.system in known and message.run >= 0:
        return True
    print(
        f"wafer of {message.system!r} for run {message.run} refused: the job may only use"
        f" {', '.join(known)}",
        file=sys.stderr,
    )
    return False
