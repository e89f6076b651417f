"""Mailbox of a Slurm job's launcher: complete messages, in order, each read once."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from csrun.context import JobFile, Role, TaskEntry
from csrun.launch.process.protocol import SignalTasks, StartTask
from csrun.launch.slurm.mailbox import (
    MAIL_DIR,
    Heartbeat,
    MailboxReader,
    Outbox,
    ReleaseAgents,
    StartAll,
    ToNodeAgents,
    launcher_mailbox,
)

ENTRY = TaskEntry(0, Role.CHIEF, "node1", 0, 0, (0, 1))
JOB = JobFile(7, None, ("true",), "/", "local", 1, 2, (ENTRY,))


def test_mail_comes_whole_and_once(tmp_path: Path) -> None:
    (tmp_path / MAIL_DIR).mkdir()
    box = launcher_mailbox(tmp_path)
    outbox = Outbox(box)
    reader = MailboxReader(box, msgspec.msgpack.Decoder(ToNodeAgents))
    assert reader.read() == []
    said = [
        StartAll(JOB, True),
        StartTask(0, ("a b", ""), "cs2-01", 3),
        SignalTasks(("x",), 15),
        ReleaseAgents(),
    ]
    for message in said[:2]:
        assert outbox.post(message)
    assert reader.read() == said[:2]
    assert reader.read() == []
    whole = box.read_bytes()
    for message in said[2:]:
        assert outbox.post(message)
    rest = box.read_bytes()[len(whole) :]
    for end in range(len(rest)):
        box.write_bytes(whole + rest[:end])
        said[2:] = said[2 + len(reader.read()) :]
    box.write_bytes(whole + rest)
    assert reader.read() == said[2:] == [ReleaseAgents()]


def test_what_finds_no_room_waits_and_is_never_a_part(tmp_path: Path) -> None:
    (tmp_path / MAIL_DIR).mkdir()
    box = launcher_mailbox(tmp_path)
    outbox = Outbox(box)
    reader = MailboxReader(box, msgspec.msgpack.Decoder(ToNodeAgents))
    first, second, beat = StartTask(0, ("a",)), SignalTasks(("x",), 15), Heartbeat(9.0, False)
    assert outbox.post(first)
    with file_size_limit(box.stat().st_size + 10):
        assert not outbox.post_or_drop(beat)
        assert not outbox.is_waiting
        assert not outbox.post(second)
        assert not outbox.post_or_drop(beat)
        assert not outbox.post(ReleaseAgents())
        assert reader.read() == [first]
        assert str(box) in outbox.refusal
        assert "File too large" in outbox.refusal
    assert outbox.is_waiting
    assert outbox.post_or_drop(beat)
    assert not outbox.is_waiting
    assert reader.read() == [second, ReleaseAgents(), beat]


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Limit the file size of this process, as on a full disk."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
