"""--num_csx: a job with several CS systems."""

import json
import os
import re
import signal

import pytest
from support.fc_mnist import MANY_STEPS, TWO_STREAMERS, FcMnist, losses
from support.jobs import STALL_S, until
from support.sites import STREAMING_8, separate_site

CLUSTER = ("--site", "streaming-8", *TWO_STREAMERS)
MACHINES = ("--site", "separate.yaml", "--total-nodes", "5", "--tasks-per-node", "1")
TWO_TASKS = (
    *("--site", "streaming-8", "--num-wgt-servers", "2"),
    *("--total-nodes", "4", "--tasks-per-node", "1"),
)


def test_a_training_goes_on_with_another_number_of_systems(place: FcMnist) -> None:
    """Which its checkpoint knows, and its record and report; from one machine to several."""
    place.configure(runconfig__num_csx=2, runconfig__log_steps=10)
    done = place.wse("--max_steps", "10", layout=TWO_TASKS)
    assert done.returncode == 0, done.stderr
    assert "shared by 2 MemoryX tasks" in done.stdout
    assert "2 CS systems share each batch: cs2-01, cs2-02" in done.stdout
    assert "Train Device=cs2-01+cs2-02, Step=10" in done.stdout
    record = json.loads((place.model_dir / "performance" / "performance.json").read_text())
    assert record["num_csx"] == 2
    assert " CS systems: 2. Rates" in (place.path / "compile_report.txt").read_text()
    uses = json.loads(place.csctl("--site", "streaming-8", "get", "jobs", "-o", "json").stdout)
    assert [use["system"] for use in uses[-1]["systems"]] == ["cs2-01", "cs2-02"]
    separate_site(place.path, shipped=STREAMING_8)
    again = place.wse("--max_steps", "20", "--num_csx", "4", layout=MACHINES)
    assert again.returncode == 0, again.stderr
    assert re.search("num_csx was 2 and is 4.*last digits", again.stdout)
    assert losses(place.model_dir)[20] < losses(place.model_dir)[1]


@pytest.mark.slow
def test_the_checkpoint_does_not_depend_on_the_memoryx_tasks(place: FcMnist) -> None:
    """Of three systems; each layer is a group, as large as it must be for that."""
    steps = 20
    place.configure(
        model__hidden_sizes=[600, 600, 600],
        train_input__batch_size=96,
        runconfig__num_csx=3,
        runconfig__max_steps=steps,
    )
    contents = []
    for layout in (CLUSTER, TWO_TASKS):
        done = place.wse(layout=layout)
        assert done.returncode == 0, done.stderr
        contents.append(place.checkpoint(steps).read_bytes())
        place.model_dir.rename(place.path / f"run {len(contents)}")
    assert done.stdout.count("in memory, shared by 2 MemoryX tasks\n") == 1
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_a_wafer_that_is_killed_ends_the_run_of_all(place: FcMnist) -> None:
    """What it did last is in the trace."""
    steps = 1, MANY_STEPS
    place.configure(
        runconfig__num_csx=4, runconfig__max_steps=MANY_STEPS, runconfig__trace_steps=[*steps]
    )
    with place.start_wse(layout=CLUSTER) as launcher:
        until(lambda: 1 in losses(place.model_dir))
        os.kill(place.processes(launcher.pid)["wafer-cs2-02"], signal.SIGKILL)
        _, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGKILL, err
    named = [line for line in err.splitlines() if "error: " in line]
    cause = "csrun_wse: error: wafer of cs2-02 (for rank 0 on node1) was killed by signal 9"
    assert [line[: len(cause)] for line in named] == [cause]
    (trace,) = (place.model_dir / "trace").iterdir()
    assert trace.name == f"steps_1_{MANY_STEPS}_failed.json"
    events = json.loads(trace.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    worked = {processes[event["pid"]] for event in events if event.get("cat") == "compute"}
    assert worked == {f"wafer cs2-0{number}" for number in range(1, 5)}


@pytest.mark.slow
def test_six_systems_on_several_machines_have_the_bits_of_one(place: FcMnist) -> None:
    """With two SwarmX tasks between; and a job that was laid out without them says how to."""
    separate_site(place.path, shipped=STREAMING_8)
    place.configure(train_input__batch_size=120, runconfig__max_steps=10, runconfig__log_steps=1)
    done = place.wse("--num_csx", "6", layout=MACHINES)
    assert done.returncode == 0, done.stderr
    assert "Train Device=cs2-01+cs2-02+cs2-03+cs2-04+cs2-05+cs2-06, Step=10" in done.stdout
    assert place.wse("--num_csx", "6", "-o", "one", layout=CLUSTER).returncode == 0
    assert len(losses(place.model_dir)) == 10
    assert losses(place.model_dir) == losses(place.path / "one")
    assert place.checkpoint(10).read_bytes() == place.checkpoint(10, "one").read_bytes()
    place.configure(train_input__batch_size=120, runconfig__num_csx=6)
    refused = place.wse(layout=MACHINES)
    assert refused.returncode == 2
    assert re.search(
        "2 SwarmX tasks .* has 0: pass --num_csx 6 .* --total-nodes 5 --single-task-nodes 4\n",
        refused.stderr,
    )
