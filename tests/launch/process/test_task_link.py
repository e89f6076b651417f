"""Socket for messages of tasks, used by the fork server and the node agent."""

import os
import socket
from pathlib import Path

import msgspec
import pytest
from support.accounts import OTHER, as_account, needs_two_accounts

from csrun.context import Progress, SpawnWafer
from csrun.launch.process.task_link import bind_link, receive

MESSAGE = Progress("training", 1, 2)
NO_MESSAGES = [
    b"",
    b"\xc1",
    b"\xa2\xff\xfe",  # a text that is no UTF-8
    b"\x81\xa4type\xa2\xff\xfe",
    b"\x91" * 60_000,  # an array in an array in an array …
]


@pytest.mark.parametrize("data", NO_MESSAGES, ids=range(len(NO_MESSAGES)))
def test_what_is_no_message_is_told_of_and_the_next_one_comes(tmp_path, capsys, data):
    with bind_link(tmp_path, "link.sock") as link, socket.socket(link.family, link.type) as task:
        task.connect(str(tmp_path / "link.sock"))
        task.send(data)
        task.send(msgspec.msgpack.encode(MESSAGE))
        assert receive(link) is None
        assert "malformed message" in capsys.readouterr().err
        assert receive(link) == MESSAGE


@needs_two_accounts
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_another_account_cannot_send_and_is_not_heard(own_folder, capsys, umask):
    """The socket file is not accessible, and messages by other ways are dropped undecoded."""
    before = os.umask(umask)
    try:
        with bind_link(own_folder, "link.sock") as link:
            path = Path("link.sock")  # in this folder, whose parents do not count
            own_folder.chmod(0o711)
            data = msgspec.msgpack.encode(SpawnWafer("cs2-01", 0))
            assert isinstance(as_account(OTHER, lambda: _send(path, data)), PermissionError)
            path.chmod(0o777)
            assert as_account(OTHER, lambda: _send(path, data)) is None
            assert receive(link) is None
            assert f"dropped a message of another account, uid {OTHER}" in capsys.readouterr().err
    finally:
        os.umask(before)


def _send(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, str(path))
