"""A job that alternates training and evaluation ends and resumes as one that only trains."""

import os
import signal
import subprocess

import pytest
from support.fc_mnist import TWO_STREAMERS, FcMnist
from support.jobs import STALL_S, gone, until

from csrun.records import checkpoints

SCRIPT = """
import signal
import sys
from pathlib import Path

import numpy as np

from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig
from csrun.estimator.compilation import compile_run
from csrun.estimator.target import RunSpan, find_target, machine_for
from csrun.estimator.start import load_weights
from csrun.executable import RunMode
from csrun.records import checkpoints, model_dir
from csrun.runtime.chief.machine import Feed
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions
from csrun.runtime.wire.messages import StepOrder

WAIT_AT, FOLDER = int(sys.argv[1]), sys.argv[2]
PART, LAST, SAMPLES = 20, 60, 8


def model_fn(features, labels, mode, params):
    hidden = nn.Dropout(0.2)(nn.Dense(40, "relu")(features))
    loss = nn.softmax_cross_entropy(nn.Dense(10)(hidden), labels)
    train_op = nn.AdamW(0.01).minimize(loss) if mode == nn.TRAIN else None
    return CSEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def input_fn(params):
    random = np.random.default_rng(5)
    features = random.standard_normal((200, 30)).astype("f")
    labels = random.integers(0, 10, 200).astype("i")
    return Dataset.from_arrays(features, labels).shuffle(3).repeat().batch(16)


def tells_when_told():
    # The chief leaves a file when its signal comes, and does with it what a training does.
    def told(signum, frame):
        Path("told").touch()
        trainings(signum, frame)

    trainings = signal.signal(signal.SIGTERM, told)


def lead(run):
    with model_dir.opened(run.model_dir):
        target = find_target(run.context, run.config)
        train, evaluation = (
            compile_run(run, mode, target, LAST).executable
            for mode in (RunMode.TRAIN, RunMode.EVAL)
        )
        found = checkpoints.latest(run.model_dir)
        first = found.step if found else 0
        with machine_for(run, train, target, RunSpan(first, LAST)) as (machine, show):
            load_weights(run, machine, found, None, {})
            evaluate = machine.load(evaluation, Feed(run.dataset))
            options = LoopOptions(
                run.model_dir, first, LAST, 10, PART, 5,
                run.identity(machine.plan), 0.0, run.settings,
                grace_s=run.context.job.grace_s if run.context else None,
            )
            with Training(machine, options, None, show) as training:
                tells_when_told()
                while not training.is_over:
                    training.advance()
                    if training.step % PART:
                        continue
                    evaluate.begin()
                    evaluate.run(StepOrder(0, SAMPLES))
                    print("evaluated", training.step, evaluate.losses(SAMPLES), flush=True)
                    while training.step == WAIT_AT and not Path("told").exists():
                        evaluate.begin()
                        evaluate.run(StepOrder(0, SAMPLES))
                results = training.finish()
            machine.close(results)
    return results


CerebrasEstimator(model_fn, FOLDER, CSRunConfig(), {})._run_role(input_fn, lead)
"""
PIPELINED = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")
LAYOUTS = {"python-ws": TWO_STREAMERS, "python": PIPELINED}
NOWHERE, MIDDLE, LAST = "0", "40", 60
KILLED = [
    ("python-ws", "wafer-cs2-02", "wafer of cs2-02 (for rank 0 on node1)"),
    ("python-ws", "rank-00001", "rank 1 (memoryx) on node2"),
    ("python-ws", "rank-00000", "rank 0 (chief) on node1"),
    ("python", "rank-00002", "rank 2 (streamer) on node3"),
]


def job(interpreter: str, wait_at: str) -> list[str]:
    return [*LAYOUTS[interpreter], interpreter, "run.py", wait_at, "model_dir"]


def evaluations(output: str) -> list[str]:
    return [line[line.index("evaluated") :] for line in output.splitlines() if "evaluated " in line]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], bytes]:
    """The evaluations of one process, and its last checkpoint."""
    place = FcMnist(tmp_path_factory.mktemp("undisturbed"))
    place.script(SCRIPT)
    done = place.run("python", "run.py", NOWHERE, "model_dir", command="csrun_cpu")
    assert done.returncode == 0, done.stderr
    found = evaluations(done.stdout)
    assert len(set(found)) == 3
    return found, place.checkpoint(LAST).read_bytes()


def amid_an_evaluation(launcher: "subprocess.Popen[str]") -> list[str]:
    """The evaluations up to the one that does not end."""
    assert launcher.stdout is not None
    found = []
    while not found or f"evaluated {MIDDLE}" not in found[-1]:
        line = launcher.stdout.readline()
        assert line, launcher.communicate()
        found += evaluations(line)
    return found


def assert_resumes(
    place: FcMnist, interpreter: str, before: list[str], undisturbed: tuple[list[str], bytes]
) -> None:
    """Evaluations before the end and after it, and the last checkpoint, are as if none was."""
    expected, checkpoint = undisturbed
    done = place.run(*job(interpreter, NOWHERE))
    assert done.returncode == 0, done.stderr
    assert before + evaluations(done.stdout) == expected
    assert place.checkpoint(LAST).read_bytes() == checkpoint


@pytest.mark.slow
@pytest.mark.parametrize(("interpreter", "name", "who"), KILLED)
def test_a_role_that_is_killed_while_the_second_program_runs(
    place: FcMnist, interpreter: str, name: str, who: str, undisturbed: tuple[list[str], bytes]
) -> None:
    place.script(SCRIPT)
    with place.start(*job(interpreter, MIDDLE)) as launcher:
        before = amid_an_evaluation(launcher)
        until(lambda: int(MIDDLE) in checkpoints.kept_steps(place.model_dir))  # made beside it
        processes = place.processes(launcher.pid)
        os.kill(processes[name], signal.SIGKILL)
        _, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGKILL, err
    named = [line for line in err.splitlines() if "error: " in line]
    cause = f"csrun_wse: error: {who} was killed by signal 9 (SIGKILL)"
    assert [line[: len(cause)] for line in named] == [cause]
    assert "Traceback" not in err
    assert gone(list(processes.values()))
    assert_resumes(place, interpreter, before, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", LAYOUTS)
def test_ctrl_c_amid_an_evaluation_saves_at_the_next_step(
    place: FcMnist, interpreter: str, undisturbed: tuple[list[str], bytes]
) -> None:
    place.script(SCRIPT)
    with place.start(*job(interpreter, MIDDLE)) as launcher:
        before = amid_an_evaluation(launcher)
        launcher.send_signal(signal.SIGINT)
        out, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGINT, err
    assert "completed before the end" in out
    assert evaluations(out) == []
    assert "Traceback" not in err
    assert_resumes(place, interpreter, before, undisturbed)
