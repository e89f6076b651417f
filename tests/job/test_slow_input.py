"""A job with slow input logs it, with the streamer, its stage and its numbers."""

import json
import re

import pytest
from support.fc_mnist import FOLDER, FcMnist

from csrun.runtime.input_log import MOST_ADVISED

THREE_STREAMERS = ("--total-nodes", "3", "--tasks-per-node", "3", "--cpus-per-task", "1")
DATA_TEXT = (FOLDER / "data.py").read_text()
LOAD = "        variant, sample = np.divmod("


SLEEP_S = 0.3  # a batch: long beside a step and a batch of a loaded machine


def with_sleep(place: FcMnist, ranks: tuple[str, ...]) -> str:
    """A run.py whose map sleeps in these tasks."""
    assert LOAD in DATA_TEXT
    sleep = (
        "        import os, time\n"
        f"        time.sleep({SLEEP_S} if os.environ.get('SLURM_PROCID', '0') in {ranks} else 0)\n"
    )
    return place.copy(data=DATA_TEXT.replace(LOAD, sleep + LOAD))


def run(place: FcMnist, ranks: tuple[str, ...]) -> tuple[list[str], dict[str, object]]:
    """What a run of 60 steps says of its input, and what performance.json says of its input."""
    script = with_sleep(place, ranks)
    place.configure(runconfig__max_steps=60, runconfig__save_checkpoints_steps=1000)
    done = place.run(*THREE_STREAMERS, "python-ws", script, *place.own(()))
    assert done.returncode == 0, done.stderr
    performance = json.loads((place.model_dir / "performance" / "performance.json").read_text())
    assert performance["suspected_input_bottleneck"] == (performance["input"]["verdict"] == "bound")
    lines = (done.stdout + done.stderr).splitlines()
    return [line for line in lines if ": the steps waited " in line], performance["input"]


def numbers(pattern: str, line: str) -> tuple[float, ...]:
    found = re.search(pattern, line)
    assert found, line
    return tuple(float(number) for number in found.groups())


def test_one_slow_streamer_is_named(place: FcMnist) -> None:
    (*_, line), record = run(place, ("3",))
    pattern = (
        r"streamer 3 delivered ([\d.]+) batches/s \(the others ([\d.]+)\), the wafer asked for "
        r"([\d.]+): its stage 'map load' takes ([\d.]+) ms per batch; check its node and its shard"
    )
    delivered, others, asked, stage_ms = numbers(pattern, line)
    assert delivered <= 1 / SLEEP_S
    assert delivered < min(asked, others)
    assert stage_ms >= SLEEP_S * 1000
    assert record["verdict"] == "bound"
    assert record["streamers"] == 3
    assert record["slowest_stage"] == "map load"


@pytest.mark.slow
def test_streamers_that_are_all_slow_are_one_line(place: FcMnist) -> None:
    lines, record = run(place, ("2", "3", "4"))
    line = lines[-1]  # the steps of a loaded machine take more than 10 s: one line is said before
    assert all("each of 3 streamers delivered" in each for each in lines)
    delivered, _ = numbers(
        r"each of 3 streamers delivered ([\d.]+) batches/s, the wafer asked for ([\d.]+): its "
        r"stage 'map load' takes [\d.]+ ms per batch; ",
        line,
    )
    assert delivered <= 1 / SLEEP_S
    needed = record["streamers_needed"]
    assert isinstance(needed, int)
    assert needed > 3
    if needed > MOST_ADVISED:  # on a fast machine a step is that short
        assert "a step takes only" in line
    else:  # one node has them all
        assert f"{needed} streamers are needed (--tasks-per-node {needed})" in line


@pytest.mark.slow
def test_a_run_in_one_process_says_what_streamers_would_do(place: FcMnist) -> None:
    script = with_sleep(place, ("0",))
    place.configure(runconfig__max_steps=20)
    done = place.run("python", script, *place.own(()), command="csrun_cpu")
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    assert "Input bound: the steps waited" in text
    performance = json.loads((place.model_dir / "performance" / "performance.json").read_text())
    needed = performance["input"]["streamers_needed"]
    remedy = (
        "a step takes only "
        if needed > MOST_ADVISED  # on a fast machine
        else f"{needed} streamers? in a csrun_wse run would overlap this"
    )
    assert re.search(f"this process delivered .*{remedy}", text), text
