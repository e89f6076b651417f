"""csrun estimate compared with the job that follows: memory, and time of steps."""

import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from support.fc_mnist import RUN, FcMnist
from support.jobs import STALL_S, until

from csrun.records import model_dir
from csrun.records.run_estimate import COMPARED_STEPS

LAYOUT = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1")
ALIKE = 0.1


def estimated(place: FcMnist, interpreter: str) -> dict[str, object]:
    words = "estimate", "-o", "json", interpreter, RUN, *place.own(("--compile_only",))
    done = place.run(*words, command="csrun")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def proportional_bytes(job: Path) -> int:
    """Memory of the processes that write to the logs of a job: shared pages count once."""
    total = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdecimal() and os.readlink(f"{entry.path}/fd/1").startswith(f"{job}/"):
                text = Path(entry.path, "smaps_rollup").read_text()
                total += 1024 * int(re.findall(r"^Pss: +(\d+)", text, re.MULTILINE)[0])
    return total


def chiefs_logs(place: FcMnist) -> list[Path]:
    return list(place.jobs.glob("*/logs/rank-00000.log"))


def test_a_run_tells_how_it_compares_with_its_estimate(place: FcMnist) -> None:
    place.configure(runconfig__max_steps=COMPARED_STEPS + 50)
    found = estimated(place, "python")
    assert found["max_steps"] == COMPARED_STEPS + 50
    assert found["is_measured"]
    done = place.cpu()
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    assert "Cached compilation found" in text
    told = re.findall(
        r"A step takes (\S+) ms without its input, estimated were (\S+) ms \((\S+) of the", text
    )
    ((took_ms, estimated_ms, ratio),) = told
    assert float(estimated_ms) == pytest.approx(1e3 * float(str(found["step_s"])), rel=1e-3)
    assert float(ratio) == pytest.approx(float(took_ms) / float(estimated_ms), abs=0.01)
    record = json.loads((place.model_dir / "performance" / "performance.json").read_text())
    assert record["estimated_step_time"] == found["step_s"]
    params = (place.model_dir / "train" / "params_train.yaml").read_bytes()
    place.configure(runconfig__max_steps=7)
    assert place.cpu("--compile_only").returncode == 0
    assert (place.model_dir / "train" / "params_train.yaml").read_bytes() == params
    assert record["step_time"] > 0


def files_in(folder: Path) -> dict[Path, tuple[int, int]]:
    stats = {path: path.stat() for path in folder.rglob("*")}
    return {path: (status.st_mtime_ns, status.st_size) for path, status in stats.items()}


def test_a_model_dir_in_use_is_left_as_it_is(place: FcMnist) -> None:
    place.configure(runconfig__max_steps=10)
    with model_dir.opened(place.model_dir), model_dir.locked(place.model_dir, "job 7"):
        ranges = place.model_dir / "tfcs_0" / "ranges"
        ranges.mkdir(parents=True)
        (ranges / "1-0-0.ranges").touch()
        before = files_in(place.model_dir)
        words = "estimate", "python", RUN, *place.own(("--compile_only",))
        done = place.run(*words, command="csrun")
        assert done.returncode == 0, done.stderr
        assert "model_dir is in use by job 7: compiling in a temporary folder" in done.stderr
        assert "step here" in done.stdout
        assert files_in(place.model_dir) == before


@pytest.mark.slow
def test_the_memory_of_a_job_is_what_was_estimated(place: FcMnist) -> None:
    """Three matrices of 64 MB, with their gradients and momentum."""
    place.configure(model__hidden_sizes=[4000, 4000, 4000], runconfig__max_steps=100_000)
    found = estimated(place, "python-ws")
    host = sum(each["tasks"] * each["nbytes"] for each in found["host"])  # type: ignore[index]
    with place.start_wse(layout=LAYOUT) as launcher:
        until(lambda: (place.model_dir / "checkpoint").exists())
        until(lambda: any("global_step = 1," in log.read_text() for log in chiefs_logs(place)))
        used = proportional_bytes(place.jobs)
        launcher.terminate()
        with suppress(subprocess.TimeoutExpired):
            launcher.communicate(timeout=STALL_S)
    assert used == pytest.approx(host, rel=ALIKE)
