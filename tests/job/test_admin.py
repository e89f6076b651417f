"""A training on a system, and its administrator at the cs> shell."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import STALL_S, until

SYSTEM = ("--system", "cs2-02")


class Administrator:
    """Gives commands for the system that streams weights."""

    def __init__(self, place: FcMnist) -> None:
        self._environment = {**os.environ, "CSRUN_STATE_DIR": str(place.path / "state")}

    def start(self, line: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "csrun.cli.cs", *SYSTEM, *line.split()],
            env=self._environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def does(self, line: str) -> "subprocess.CompletedProcess[str]":
        with self.start(line) as process:
            out, err = process.communicate(timeout=STALL_S)
        return subprocess.CompletedProcess(line, process.returncode, out, err)

    def asks(self, line: str) -> Any:
        return json.loads(self.does(f"{line} --output-format json").stdout)


def trains(administrator: Administrator) -> bool:
    return administrator.asks("telemetry")["step_rate_per_s"] is not None


def test_a_running_job_is_seen_and_cancelled(place: FcMnist) -> None:
    administrator = Administrator(place)
    with place.start_wse("--max_steps", str(MANY_STEPS)) as first:
        until(lambda: trains(administrator))
        with place.start_wse("--max_steps", "1", "--model_dir", "other") as second:
            until(lambda: len(administrator.asks("session list")) == 2)
            sessions = administrator.asks("session list")
            assert [(s["job"], s["state"]) for s in sessions] == [(1, "RUNNING"), (2, "WAITING")]
            seen = administrator.asks("telemetry")
            assert seen["holder"].startswith("job 1 (process ")
            assert (seen["run"], seen["last_step"]) == ("training", MANY_STEPS)
            assert 0 < seen["step"] < MANY_STEPS
            assert seen["step_rate_per_s"] > 0
            assert seen["arena_bytes"] == planned_arena(place.model_dir)
            refused = administrator.does("system standby --yes")
            assert refused.returncode == 1
            assert f"while {seen['holder']} uses cs2-02" in refused.stderr
            assert administrator.does("session cancel 1").returncode == 0
            first.communicate(timeout=STALL_S)
            second.communicate(timeout=STALL_S)
    assert first.returncode == 128 + signal.SIGTERM
    assert second.returncode == 0
    assert administrator.asks("session list") == []
    assert administrator.asks("telemetry")["arena_bytes"] is None
    assert not list(place.jobs.glob("*/telemetry.json"))
    gone = administrator.does("session cancel 1")
    assert gone.returncode == 2
    assert "job 1 has no session on cs2-02; it has: none" in gone.stderr


def planned_arena(model_dir: Path) -> int:
    (plan,) = model_dir.glob("tfcs_*/plan.json")
    arena: int = json.loads(plan.read_text())["arena_bytes"]
    return arena


def test_a_drain_ends_with_the_job_and_a_waiting_job_is_told(place: FcMnist) -> None:
    administrator = Administrator(place)
    with place.start_wse("--max_steps", str(MANY_STEPS)) as running:
        until(lambda: trains(administrator))
        with administrator.start("system standby --yes --force") as drain:
            until(lambda: administrator.asks("system status")["drained_by"] is not None)
            with place.start_wse("--max_steps", "1", "--model_dir", "other") as waiting:
                until(lambda: administrator.asks("system status")["waiting_jobs"] == 1)
                running.send_signal(signal.SIGINT)
                said, shown = (
                    drain.communicate(timeout=STALL_S),
                    waiting.communicate(timeout=STALL_S),
                )
            running.communicate()
    assert drain.returncode == 0
    assert said[0] == "cs2-02 is STANDBY in WEIGHT_STREAMING mode\n"
    assert said[1].startswith("waiting for job 1 (process ")
    assert waiting.returncode == 1
    assert "Waiting for cs2-02, closed to jobs by system standby --force (process " in shown[0]
    assert "cs2-02 is in STANDBY; a job needs an ACTIVE system" in shown[1]


def test_a_drain_that_is_interrupted_is_undone(place: FcMnist) -> None:
    administrator = Administrator(place)
    with place.start_wse("--max_steps", str(MANY_STEPS)) as running:
        until(lambda: trains(administrator))
        with administrator.start("system standby --yes --force") as drain:
            until(lambda: administrator.asks("system status")["drained_by"] is not None)
            drain.send_signal(signal.SIGINT)
            said = [line for line in drain.communicate(timeout=STALL_S)[1].splitlines() if line]
        assert drain.returncode == 128 + signal.SIGINT
        assert said[1:] == ["cancelled: cs2-02 accepts jobs again", "cs: error: interrupted"]
        assert administrator.asks("system status")["drained_by"] is None
        running.send_signal(signal.SIGINT)
        running.communicate()
    assert place.wse("--max_steps", "1", "--model_dir", "other").returncode == 0
