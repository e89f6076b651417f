"""Scalars of event files written by tensorboardX."""

from pathlib import Path

import numpy as np

from csrun.records.events import EventWriter
from csrun.records.scalar_events import EventTail, begun_s, event_files


def written(folder: Path, steps: range, *, histograms: bool = False) -> Path:
    writer = EventWriter(folder)
    for step in steps:
        writer.scalars({"loss": 1 / step, "seconds/compute": 0.5}, step)
        if histograms:
            writer.histogram("weights", np.linspace(-1, 1, 1000), step)
    writer.close()
    return event_files(folder)[-1]


def losses(tail: EventTail) -> dict[int, float]:
    return {event.step: event.value for event in tail.read() if event.tag == "loss"}


def test_values_and_steps_are_those_that_were_written(tmp_path: Path) -> None:
    path = written(tmp_path, range(1, 50), histograms=True)
    events = EventTail(path).read()
    assert [(e.step, e.tag) for e in events[:2]] == [(1, "loss"), (1, "seconds/compute")]
    found = {event.step: event.value for event in events if event.tag == "loss"}
    assert found == {step: float(np.float32(1 / step)) for step in range(1, 50)}
    assert begun_s(path) <= events[0].wall_s <= begun_s(path) + 60


def test_a_file_is_read_as_it_grows(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    tail = EventTail(event_files(tmp_path)[0])
    assert tail.read() == []
    for step in (1, 2):
        writer.scalars({"loss": float(step)}, step)
        assert losses(tail) == {step: float(step)}
    writer.close()
    assert tail.read() == []


def test_a_record_that_is_not_complete_yet_is_read_later(tmp_path: Path) -> None:
    path = written(tmp_path, range(1, 4))
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    tail = EventTail(path)
    before = tail.read()
    path.write_bytes(content)
    assert len(before) + len(tail.read()) == 6


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, range(1, 2000))
    for most_bytes in range(5000, 5100):  # wherever that is within a record
        found = losses(EventTail(path, most_bytes))
        assert 20 < len(found) < 200
        assert list(found) == list(range(min(found), 2000))


def test_a_damaged_record_ends_the_reading(tmp_path: Path) -> None:
    path = written(tmp_path, range(1, 50))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(range(200))
    path.write_bytes(content)
    found = losses(EventTail(path))
    assert 0 < len(found) < 30
    assert found == {step: float(np.float32(1 / step)) for step in found}


def test_what_is_no_event_file_has_no_values(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    assert EventTail(path).read() == []
    path.write_bytes(b"\xff" * 5000)
    assert EventTail(path).read() == []
    assert EventTail(path, 100).read() == []
    path.unlink()
    path.symlink_to("/dev/zero")
    assert EventTail(path).read() == []
    assert begun_s(tmp_path / "events.out.tfevents.x") == 0
