"""Slurm's record of a job that csrun has ended: state, exit code, comment."""

import re
import signal
import sys

import pytest
from support.jobs import STALL_S, Sandbox, over_its_limit, until
from support.testbed import Testbed

pytestmark = pytest.mark.slurm
SLOW = pytest.mark.slow

SPREAD = ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1",
          "--single-task-nodes", "1")  # fmt: skip
WAIT = """
import os, sys, time
rank = os.environ["SLURM_PROCID"]
open("in" + rank, "w").close()
if rank in sys.argv:
    sys.exit(7)
time.sleep(0 if "ends" in sys.argv and rank == "0" else 600)
"""


@pytest.fixture
def place(cluster_place: Sandbox) -> Sandbox:
    cluster_place.script(WAIT)
    return cluster_place


def kept(testbed: Testbed, name: str) -> set[tuple[str, str, str]]:
    """State, exit code and comment of all components of the jobs of a name, after their end."""
    until(lambda: not testbed.queue())
    found = set()
    for line in testbed.call("scontrol", "--oneliner", "show", "job").splitlines():
        if f" JobName={name} " in line:
            comment = re.search(r" Comment=(.*?) \w+=", line)
            state, code = (re.search(rf" {key}=(\S+)", line) for key in ("JobState", "ExitCode"))
            assert state
            assert code
            found.add((state[1], code[1], comment[1].strip() if comment else ""))
    return found


@pytest.mark.parametrize("words", [
    pytest.param(("3",), marks=SLOW, id="chief-lives"),
    pytest.param(("4", "ends"), id="chief-has-ended"),
])  # fmt: skip
def test_a_failure_has_the_code_of_its_first_cause(
    place: Sandbox, testbed: Testbed, words: tuple[str, ...]
) -> None:
    """Also if the chief's node, which reports the code to Slurm, has ended long before."""
    name = f"fails-{len(words)}"
    script = f'exec {sys.executable} run.py "$@"'
    done = place.run("--job-name", name, *SPREAD, "sh", "-c", script, "-", *words)
    assert done.returncode == 7, done.stderr
    ((state, code, comment),) = kept(testbed, name)
    assert (state, code) == ("FAILED", "7:0")
    assert re.fullmatch(r"csrun: rank \d \(\w+\) on node\d ended with exit code 7", comment)


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=SLOW)])
def test_a_job_that_is_told_to_end_is_cancelled(
    place: Sandbox, testbed: Testbed, signum: signal.Signals
) -> None:
    with place.start("--job-name", signum.name, *SPREAD, "python", "run.py") as job:
        place.wait_for(*(f"in{rank}" for rank in range(5)))
        job.send_signal(signum)
        job.communicate(timeout=STALL_S)
    assert job.returncode == 128 + signum
    assert {state for state, _, _ in kept(testbed, signum.name)} == {"CANCELLED"}


def test_a_limit_of_csruns_is_told_in_a_comment(place: Sandbox, testbed: Testbed) -> None:
    words = ("--job-name", "limited", *SPREAD, "python", "run.py")
    done, _ = over_its_limit(place, lambda: True, *words)
    assert done.returncode == 143
    assert kept(testbed, "limited") == {("FAILED", "143:0", "csrun: time limit")}


@SLOW
def test_a_limit_of_a_submitted_job_is_told_in_a_comment(place: Sandbox, testbed: Testbed) -> None:
    words = ("--time-limit", "0:01", "--job-name", "in-batch", *SPREAD, "python", "run.py")
    assert place.run("--sbatch", *words).returncode == 0
    comments = kept(testbed, "in-batch")
    assert ("FAILED", "143:0", "csrun: time limit") in comments
