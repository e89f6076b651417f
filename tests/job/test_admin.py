"""A training on a system, with its administrator at the cs> shell."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import STALL_S, kill_tree, until

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


@pytest.fixture
def administrator(place: FcMnist) -> Administrator:
    return Administrator(place)


@pytest.fixture
def training(place: FcMnist) -> Iterator["subprocess.Popen[str]"]:
    """A job that trains on the system, and reports its rate."""
    with place.start_wse("--max_steps", str(MANY_STEPS), script=place.slow_copy()) as running:
        until(lambda: any(map(has_rate, place.jobs.glob("*/telemetry.json"))))
        yield running
        if running.poll() is None:  # the test has failed
            kill_tree(running.pid)


def has_rate(path: Path) -> bool:
    return json.loads(path.read_text())["step_rate_per_s"] is not None


def line_with(text: str, stream: "IO[str] | None") -> str:
    """The first line with this text, which costs less than commands that ask again and again."""
    assert stream is not None
    return next(line for line in stream if text in line)


def test_a_running_job_is_seen_and_cancelled(
    place: FcMnist, administrator: Administrator, training: "subprocess.Popen[str]"
) -> None:
    with place.start_wse("--max_steps", "1", "--model_dir", "other") as waiting:
        line_with("Waiting for cs2-02, held by job 1", waiting.stdout)
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
        training.communicate(timeout=STALL_S)
        waiting.communicate(timeout=STALL_S)
    assert training.returncode == 128 + signal.SIGTERM
    assert waiting.returncode == 0
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


@pytest.mark.slow
def test_a_drain_is_undone_when_interrupted_and_ends_with_the_job(
    place: FcMnist, administrator: Administrator, training: "subprocess.Popen[str]"
) -> None:
    with administrator.start("system standby --yes --force") as drain:
        line_with("waiting for job 1 (process ", drain.stderr)
        assert administrator.asks("system status")["drained_by"] is not None
        drain.send_signal(signal.SIGINT)
        said = [line for line in drain.communicate(timeout=STALL_S)[1].splitlines() if line]
    assert drain.returncode == 128 + signal.SIGINT
    assert said == ["cancelled: cs2-02 accepts jobs again", "cs: error: interrupted"]
    assert administrator.asks("system status")["drained_by"] is None
    with administrator.start("system standby --yes --force") as drain:
        line_with("waiting for job 1 (process ", drain.stderr)
        with place.start_wse("--max_steps", "1", "--model_dir", "other") as waiting:
            line_with(
                "Waiting for cs2-02, closed to jobs by system standby --force (process ",
                waiting.stdout,
            )
            assert administrator.asks("system status")["waiting_jobs"] == 1
            training.send_signal(signal.SIGINT)
            shown, _ = drain.communicate(timeout=STALL_S)
            _, refusal = waiting.communicate(timeout=STALL_S)
        training.communicate(timeout=STALL_S)
    assert (drain.returncode, shown) == (0, "cs2-02 is STANDBY in WEIGHT_STREAMING mode\n")
    assert waiting.returncode == 1
    assert "cs2-02 is in STANDBY; a job needs an ACTIVE system" in refusal
