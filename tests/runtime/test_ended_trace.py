"""A run that is terminated saves before it gathers traces, which other processes may delay."""

import os
import signal

import pytest
from msgspec.structs import replace
from support.running import NETWORK, PIPELINED, SETTINGS, data

from csrun.records import checkpoints
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions

LAST, ASKED = 9, 3  # steps: of the run, and when it is told to end


def test_the_checkpoint_comes_before_the_trace(tmp_path, monkeypatch):
    executable = NETWORK.compile(tmp_path, PIPELINED)
    settings = replace(SETTINGS, trace_steps=(2, LAST))
    machine = CpuMachine(executable, data(NETWORK), settings, 0)
    machine.initialize()
    kept = []
    traced = machine.traced
    monkeypatch.setattr(
        machine, "traced", lambda: kept.append(checkpoints.kept_steps(tmp_path)) or traced()
    )

    def taken(first: int, count: int) -> None:
        if first < ASKED <= first + count:
            os.kill(os.getpid(), signal.SIGINT)

    options = LoopOptions(tmp_path, 0, LAST, 1, LAST, 5, {}, 0.0, settings)
    with pytest.raises(KeyboardInterrupt):
        Training(machine, options, None, lambda progress: None, taken).run()
    assert kept == [(0, ASKED)]
    assert [path.name for path in (tmp_path / "trace").iterdir()] == [f"steps_2_{ASKED}.json"]
