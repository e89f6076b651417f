"""Event files, parsed record by record."""

import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from csrun.records.events import EventWriter


def records(path: Path) -> Iterator[bytes]:
    """Records of a TFRecord file: length, its checksum, data, their checksum.

    Source: TensorFlow, lib/io/record_writer.h
    """
    content, at = path.read_bytes(), 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        yield content[at + 12 : at + 12 + length]
        at += 12 + length + 4
    assert at == len(content)


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    (path,) = folder.glob("events.out.tfevents.*")
    events = [Event.FromString(record) for record in records(path)]
    return [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]


def test_what_is_written_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    try:
        writer.scalars({"loss": 2.5, "lr": 0.125}, 100)
        assert scalars(tmp_path) == [(100, "loss", 2.5), (100, "lr", 0.125)]
        writer.scalars({"avg_samples_per_sec": 1024.0}, 200)
        assert scalars(tmp_path)[2:] == [(200, "avg_samples_per_sec", 1024.0)]
    finally:
        writer.close()


def test_nothing_runs_beside_the_caller(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # of which another test's may end
    writer = EventWriter(tmp_path)
    writer.scalars({"loss": 1.0}, 1)
    assert not {*threading.enumerate()} - before
    writer.close()


def test_runs_within_a_second_have_files_of_their_own(tmp_path: Path) -> None:
    for _ in range(3):
        writer = EventWriter(tmp_path)
        writer.scalars({"loss": 1.0}, 1)
        writer.close()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 3


@pytest.mark.parametrize("step", [0, 2**40])
def test_steps_of_any_size(tmp_path: Path, step: int) -> None:
    writer = EventWriter(tmp_path)
    writer.scalars({"loss": 1.0}, step)
    writer.close()
    assert scalars(tmp_path) == [(step, "loss", 1.0)]


def test_pytorch_is_not_imported_for_the_events(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = (
        "import sys; from pathlib import Path; from csrun.records.events import EventWriter; "
        f"EventWriter(Path({str(tmp_path)!r})).close(); print('torch' in sys.modules); "
        "import torch"  # and the user can import it all the same
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
