"""A run.py under a command other than csrun's interpreters trains alone, on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fc_mnist import RUN, FcMnist

STEPS = ("--max_steps", "3")
PYTHON = ("env", sys.executable, RUN)


@pytest.fixture
def place(tmp_path: Path) -> FcMnist:
    return FcMnist(tmp_path)


@pytest.mark.slow
def test_a_single_task_and_csrun_cpu_are_the_cpu_run(place: FcMnist) -> None:
    one_task = ("--total-nodes", "1", "--tasks-per-node", "1")
    assert place.run(*one_task, *PYTHON, *STEPS, "-o", "task").returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "csrun.cli.csrun_cpu", "python", RUN, *STEPS, "-o", "cpu"],
        cwd=place.path, env={**os.environ, "CSRUN_STATE_DIR": str(place.path / "state")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert place.cpu(*STEPS, "-o", "alone").returncode == 0
    expected = place.checkpoint(3, "alone").read_bytes()
    assert place.checkpoint(3, "task").read_bytes() == expected
    assert place.checkpoint(3, "cpu").read_bytes() == expected


def test_several_tasks_are_refused(place: FcMnist) -> None:
    done = place.run("--total-nodes", "1", "--tasks-per-node", "2", *PYTHON, *STEPS)
    assert done.returncode == 2
    assert "env: only tasks of python, python-pt and python-ws train together, got 2 tasks" in (
        done.stdout + done.stderr
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert not place.model_dir.exists()


ENDS = """\
import sys
from csrun.base.errors import UsageError
from csrun.context import current
from csrun.context.script_end import at_script_end


def check():
    raise UsageError("the check at the script's end")


at_script_end(check)
print("optimize", sys.flags.optimize, "rank", current().rank)
"""


def test_a_python_with_options_is_a_task_as_any_other(place: FcMnist) -> None:
    script = place.script(ENDS)
    done = place.run("--total-nodes", "1", "--tasks-per-node", "1", "python", "-uO", script)
    assert "optimize 1 rank 0" in done.stdout
    assert "the check at the script's end" in done.stderr
    assert done.returncode == 2
