"""What a fork server and an attendant share: the socket of their tasks' messages."""

import socket

import msgspec
import pytest

from csrun.context import Progress
from csrun.launch.process.forking import bind_link, receive

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
        assert "a message that is none" in capsys.readouterr().err
        assert receive(link) == MESSAGE
