"""A training that is terminated saves at the next step, and resumes with the same bits."""

import getpass
import re
import signal
import subprocess
from dataclasses import replace

import pytest
from support.fc_mnist import FOLDER, MANY_STEPS, TWO_STREAMERS, FcMnist, losses
from support.jobs import STALL_S
from support.testbed import site_file

TWO_NODES = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")
RUN_TEXT = (FOLDER / "run.py").read_text()
MAIN = 'if __name__ == "__main__":\n'
SLOW = """
    import importlib, time
    checkpoint = importlib.import_module("csrun.records.checkpoints.write")
    write, written = checkpoint._write_tensors, []
    def slowly(path, tensors, *others):
        path.touch()
        time.sleep({seconds} if written else 0)
        path.unlink()
        written.append(path)
        return write(path, tensors, *others)
    checkpoint._write_tensors = slowly
"""


SLOW_STEPS = """
    import pathlib, time
    from csrun.runtime.chief.training import step_orders
    begin, index = step_orders.OrderSplitter.begin, pathlib.Path("model_dir", "checkpoint")
    def slowly(orders, steps, *limits):
        time.sleep(0.5 if steps.first == 5 else 0)
        order = begin(orders, steps, *limits)
        while steps.first == 4 and "model-ckpt-4" not in index.read_text():
            time.sleep(0.01)
        return order
    step_orders.OrderSplitter.begin = slowly
"""


def last_saved(place: FcMnist, output: str) -> int:
    """The step at which a job that was told to end says that it has saved."""
    (step,) = re.findall(r"Checkpoint at global step (\d+) completed before the end", output)
    assert f"resumes from model-ckpt-{step}\n" in output
    assert place.checkpoint(int(step)).exists()
    return int(step)


def until_it_trains(launcher: "subprocess.Popen[str]") -> str:
    assert launcher.stdout is not None
    return next(line for line in launcher.stdout if "global_step = 1," in line)


@pytest.mark.parametrize(
    ("interpreter", "layout", "signum"),
    [
        pytest.param("python-ws", TWO_STREAMERS, signal.SIGTERM, id="streaming, csctl cancel"),
        pytest.param(  # quick on a cluster, in tests/slurm/test_endings.py
            "python", TWO_NODES, signal.SIGINT, id="pipelined, Ctrl-C", marks=pytest.mark.slow
        ),
    ],
)
def test_what_it_resumes_is_the_undisturbed_training(
    place: FcMnist, interpreter: str, layout: tuple[str, ...], signum: signal.Signals
) -> None:
    place.configure(runconfig__save_checkpoints_steps=MANY_STEPS, runconfig__log_steps=1)
    start = place.start_wse("--max_steps", str(MANY_STEPS), layout=layout, interpreter=interpreter)
    with start as launcher:
        until_it_trains(launcher)
        if signum == signal.SIGTERM:
            reason = f"cancelled by {getpass.getuser()} (csctl cancel)"
            assert place.csctl("cancel", "1").returncode == 0
        else:
            reason = "Ctrl-C (SIGINT)"
            launcher.send_signal(signum)
        out, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signum, err
    assert f"csrun_wse: {reason}: job terminated" in err
    assert place.record(1)["cause"] == reason
    saved = last_saved(place, out)
    assert f"{reason}: training ends after global step {saved}" in out
    assert "Traceback" not in out + err
    assert sorted(path.name for path in place.model_dir.glob(".*")) == []
    goal = ("--max_steps", str(saved + 20))
    resumed = place.wse(*goal, layout=layout, interpreter=interpreter)
    assert resumed.returncode == 0, resumed.stderr
    whole = place.cpu(*goal, "--model_dir", "undisturbed")
    assert whole.returncode == 0, whole.stderr
    ours, its = place.checkpoint(saved + 20), place.checkpoint(saved + 20, "undisturbed")
    assert ours.read_bytes() == its.read_bytes()
    assert losses(place.model_dir) == losses(place.path / "undisturbed")


def slow_job(place: FcMnist, seconds: float, grace_s: float, every: int) -> FcMnist:
    """A user's script whose checkpoints, but the first, take so long, on such a site."""
    slow = SLOW.format(seconds=seconds)
    assert MAIN in RUN_TEXT
    place.copy(run=RUN_TEXT.replace(MAIN, MAIN + slow))
    place.configure(runconfig__save_checkpoints_steps=every, runconfig__log_steps=1)
    return replace(place, site=site_file(place.path, "local", grace_s=grace_s))


def ended(place: FcMnist, line: str) -> str:
    """The output of such a job that is told to end once it has said this."""
    command = ("python-ws", "copy/run.py", *place.own(("--max_steps", str(MANY_STEPS))))
    with place.start(*TWO_STREAMERS, *command) as launcher:
        assert launcher.stdout is not None
        before = next(text for text in launcher.stdout if line in text)
        launcher.send_signal(signal.SIGTERM)
        out, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 143, err
    assert "csrun_wse: SIGTERM: job terminated" in err
    assert not list(place.model_dir.glob(".csrun-*"))
    return before + out


def test_a_save_that_takes_long_is_waited_for(place: FcMnist) -> None:
    there = slow_job(place, seconds=2, grace_s=60, every=MANY_STEPS)
    out = ended(there, "global_step = 1,")
    assert last_saved(place, out) > 0


@pytest.mark.slow
def test_a_save_that_would_take_longer_than_the_grace_is_not_begun(place: FcMnist) -> None:
    there = slow_job(place, seconds=1.5, grace_s=1, every=4)
    script = place.path / "copy" / "run.py"
    script.write_text(script.read_text().replace(MAIN, MAIN + SLOW_STEPS))
    out = ended(there, "global_step = 5,")
    assert re.search(r"No checkpoint at global step \d+: the last one took [\d.]+ s and 0\.\d s "
                     "of grace are left; raise grace_s in the site file", out), out  # fmt: skip
    assert "Training interrupted: the next run in model_dir resumes from model-ckpt-4\n" in out


@pytest.mark.slow
def test_a_save_that_takes_longer_than_the_grace_is_discarded(place: FcMnist) -> None:
    """The first one, of the initial weights, did not tell that it would."""
    there = slow_job(place, seconds=20, grace_s=2, every=MANY_STEPS)
    out = ended(there, "global_step = 1,")
    assert re.search(r"Checkpoint at global step \d+ discarded", out)
    assert "The grace period of 2 s is over (grace_s in the site file)" in out
    assert "resumes from model-ckpt-0\n" in out
