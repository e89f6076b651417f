"""Server end of its tasks' connection; the sender of each message is verified."""

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
from csrun.context.launcher_link import Message

_DATAGRAM_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_decoder = msgspec.msgpack.Decoder(Message)


def bind_link(job_dir: Path, name: str) -> socket.socket:
    """Create the socket in the job folder for messages of its tasks, with the sender's
    credentials.
    """
    # Socket paths are limited to 108 bytes, job folders are not: use the folder's descriptor.
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    folder = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY)
    # bind(2) creates the file with the umask; a later chmod would leave a gap.
    mask = os.umask(0o077)
    try:
        link.bind(f"/proc/self/fd/{folder}/{name}")
    finally:
        os.umask(mask)
        os.close(folder)
    return link


def receive(link: socket.socket) -> Message | None:
    """Return the next message of a task; None, with a log line, for an invalid one.

    A message of another account is dropped without decoding it.
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
    """Return the account that sent a datagram, according to the kernel; unix(7),
    SCM_CREDENTIALS.
    """
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, uid, _ = _CREDENTIALS.unpack(data)
            return int(uid)
    return None


def is_permitted(message: Message, job: JobFile) -> bool:
    """True if the job may have the requested wafer: its system belongs to the site, and to the
    systems that a scheduler allocated to the job.

    A refused request is logged.
    """
    if not isinstance(message, SpawnWafer):
        return True
    from csrun.site import load  # reads YAML, which a server without a wafer never needs

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
