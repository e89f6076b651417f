"""Barrier of a job's tasks, in one process: payloads, and a lost task."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the front end is PyTorch's")

from csrun.base.errors import PeerLost
from csrun.base.files import write_atomic
from csrun.context.job import ended_file
from csrun.pytorch.framework import tasks


def job_of(folder, monkeypatch, count=2):
    """Rank 0 of a job with this many tasks."""
    job = SimpleNamespace(tasks=[SimpleNamespace(rank=rank) for rank in range(count)])
    context = SimpleNamespace(mode="pipelined", job=job, job_dir=folder, rank=0)
    monkeypatch.setattr(tasks, "current", lambda: context)
    monkeypatch.setattr(tasks, "_met", tasks.Counter())


def test_a_rendezvous_waits_for_all_tasks(tmp_path, monkeypatch):
    job_of(tmp_path, monkeypatch)
    found = []
    waiting = threading.Thread(target=lambda: found.append(tasks.rendezvous("data/set", "a")))
    waiting.start()
    place = tmp_path / "barriers" / "data_set.1"
    while not (place / "0").exists():
        waiting.join(0.01)
    waiting.join(5 * tasks._POLL_S)
    assert waiting.is_alive()
    assert found == []
    write_atomic(place / "1", b"b")
    waiting.join()
    assert found == [["a", "b"]]
    (tmp_path / "barriers" / "data_set.2").mkdir()
    (tmp_path / "barriers" / "data_set.2" / "1").write_text("d")
    assert tasks.rendezvous("data/set", "c") == ["c", "d"]  # of the second meeting


def test_a_rendezvous_ends_if_a_task_has_ended_before(tmp_path, monkeypatch):
    job_of(tmp_path, monkeypatch)
    ended_file(tmp_path, 1).parent.mkdir()
    ended_file(tmp_path, 1).touch()
    with pytest.raises(PeerLost, match="rendezvous 'begin': task 1 has ended without reaching it"):
        tasks.rendezvous("begin")
