"""Where a run takes place: the order in which its parts begin."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from csrun import system
from csrun.estimator import place
from csrun.runtime.wire.rendezvous import RunFolder


def test_no_streamer_of_its_own_waits_for_a_chief_that_cannot_listen(tmp_path, monkeypatch):
    """It would wait for the endpoint without end, and leaving it waits for it."""
    started = []
    monkeypatch.setattr(system, "acquire", lambda *_: nullcontext())
    monkeypatch.setattr(place, "OwnStreamer", lambda *_: started.append(1) or nullcontext())
    (tmp_path / "runs").touch()  # a file where the run's folder belongs
    job = SimpleNamespace(job_id=1)
    context = SimpleNamespace(job=job, job_dir=tmp_path, rank=0, streamers=(0,))
    leased = SimpleNamespace(name="cs2-01")
    target = place.Target(context, object(), leased, None)
    folder = RunFolder(tmp_path / "runs" / "0", "1", b"secret")
    run = SimpleNamespace(folder=folder, dataset=None)
    with pytest.raises(NotADirectoryError):
        place.loaded_machine(run, None, target, 0, None).__enter__()
    assert not started
