"""cs_input_analyzer on the shipped model: measurements, files, and the rate of a job."""

import json
import re
import subprocess
from typing import Any

import numpy as np
import pytest
from support.fc_mnist import FOLDER, RUN, FcMnist

SLEEP_S = 0.05
TRIES = 3  # what else runs on the machine while it measures looks like a shared resource
BUSY = 0.5  # share of a rate that other tests take
SLEEPING_MAP = f"""
    import time
    def nap(x, y):
        time.sleep({SLEEP_S})
        return x, y
    return chain.map(nap)
"""
FILES, ROWS = 3, 640
BY_FILE = """
    return Dataset.from_files("part-*.npz").shard_files().shuffle(1).repeat().batch(128)
"""
#: Compiles, or trains on, a few batches that end; then on batches of another size.
TWO_RUNS = """
import sys
import numpy as np
from csrun import nn
from csrun.data import Dataset
from csrun.estimator import CerebrasEstimator, CSEstimatorSpec

def input_fn(params):
    rows = params["rows"]
    batch = np.zeros((rows, 4), "f"), np.zeros(rows, "i")
    return [batch] * 2  # fewer than workers

def model_fn(features, labels, mode, params):
    loss = nn.softmax_cross_entropy(nn.Dense(2, name="out")(features), labels)
    return CSEstimatorSpec(mode, loss=loss, train_op=nn.SGD(0.1).minimize(loss))

for rows in 128, 32:
    estimator = CerebrasEstimator(model_fn, f"model_dir_{rows}", params={"rows": rows})
    if "--compile_only" in sys.argv:
        estimator.compile(input_fn)
    else:
        estimator.train(input_fn, max_steps=3)
"""
FAILING_MAP = """
    calls = iter(range(10**9))
    def broken(x, y):
        if next(calls) == 30:
            raise ZeroDivisionError("in the user's map")
        return x, y
    return chain.map(broken)
"""


def analyzed(place: FcMnist, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = place.run(*words, command="cs_input_analyzer")
    assert done.returncode == code, done.stdout + done.stderr
    return done


def mapped(place: FcMnist, ending: str) -> str:
    """A copy of the model whose training pipeline has one more map; the path of its run.py."""
    data = (FOLDER / "data.py").read_text()
    head, tail = data.split("    return (\n        Dataset.from_arrays(np.arange", 1)
    chain, rest = tail.split("\n    )\n", 1)
    made = f"    chain = (\n        Dataset.from_arrays(np.arange{chain}\n    )\n"
    text = f"{head}{made}{ending}{rest}"
    return place.copy(data=text)


def own(place: FcMnist, *arguments: str) -> list[str]:
    return place.own(arguments)


def written(place: FcMnist) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.path / "input_analysis.json").read_text())
    return found


@pytest.mark.slow  # tests/slurm/test_input_analyzer.py has a quick one, of a smaller pipeline
@pytest.mark.parametrize("interpreter", ["python-ws", "python"])
def test_it_measures_the_shipped_pipeline(place: FcMnist, interpreter: str) -> None:
    words = own(place, "--compile_only")
    text = analyzed(place, interpreter, RUN, *words).stdout
    found = written(place)
    measured = found["measurements"]
    assert measured["streaming"] == (interpreter == "python-ws")
    assert measured["batch_size"] == 128
    assert 28 * 28 * 4 < measured["sample_bytes"] < 28 * 28 * 4 + 8
    assert [point["tasks"] for point in measured["points"]][:3] == [1, 2, 3]
    stages = {stage["name"] for stage in measured["points"][0]["stages"]}
    assert stages == {"from_arrays", "map load", "copy"}
    assert found["target"]["samples_per_s"] == measured["wafer_samples_per_s"] > 0
    assert f"csrun_wse --total-nodes {found['solution']['layout']['nodes']}" in text
    assert (place.path / "input_analysis.html").read_text().startswith("<!doctype html>")
    assert list(place.model_dir.glob("tfcs_*/program.py"))
    assert not list(place.path.glob("state/**/analysis-*"))


@pytest.mark.slow
def test_a_validation_leaves_no_model_dir_and_its_layout_feeds(place: FcMnist) -> None:
    words = own(place, "--validate_only")
    text = analyzed(place, "--verify", "python-ws", RUN, *words).stdout
    verified = written(place)["verified"]
    assert verified["fed"]["samples_per_s"] > 0
    assert verified["fed"]["streamers"] == verified["layout"]["streamers"]
    assert "Verified" in text or "Not verified" in text  # as busy as the machine is
    assert not place.model_dir.exists()


@pytest.mark.alone
@pytest.mark.slow
def test_a_sleeping_map_limits_and_the_recommended_tasks_feed(place: FcMnist) -> None:
    script = mapped(place, SLEEPING_MAP)
    alone = 128 / SLEEP_S  # samples a second that one task makes at most
    target = str(3.5 * alone)
    words = own(place, "--compile_only")
    for _ in range(TRIES):
        analyzed(place, "--verify", "--target", target, "python-ws", script, *words)
        found = written(place)
        verified = found["verified"]
        if verified["fed"]["streamers"] > 3 and abs(verified["deviation"]) < BUSY:
            break
    assert found["limiting"]["stage"]["name"] == "map nap"
    assert found["limiting"]["stage"]["waits"]
    (stage,) = [stage for stage in found["stages"] if stage["name"] == "map nap"]
    (waits,) = re.findall(r"nap waits ([\d.]+)", "".join(found["measurements"]["suggestions"]))
    assert float(waits) == pytest.approx(0.128 * (stage["wall_us"] - stage["cpu_us"]), rel=0.01)
    streamers = verified["fed"]["streamers"]
    assert 4 <= streamers <= 5  # 3.5 times one task's, and the margin of an eighth
    assert verified["fed"]["samples_per_s"] >= 3.5 * alone * 0.9
    expected = verified["layout"]["samples_per_s"]
    assert verified["deviation"] == pytest.approx(verified["fed"]["samples_per_s"] / expected - 1)
    assert abs(verified["deviation"]) < BUSY


def test_a_map_that_fails_while_it_is_measured(place: FcMnist) -> None:
    script = mapped(place, FAILING_MAP)
    words = own(place, "--compile_only")
    done = analyzed(place, "python-ws", script, *words, code=1)
    assert "ZeroDivisionError: in the user's map" in done.stderr
    assert "input_fn: map broken" in done.stderr
    assert "failed at sample" in done.stderr
    assert not (place.path / "input_analysis.json").exists()


@pytest.mark.slow
def test_files_bound_the_number_of_streamers(place: FcMnist) -> None:
    for number in range(FILES):
        images, labels = np.zeros((ROWS, 28, 28), "f"), np.zeros(ROWS, "i")
        np.savez(place.path / f"part-{number}.npz", images, labels)
    script = mapped(place, BY_FILE)
    words = own(place, "--compile_only")
    analyzed(place, "--target", "1e12", "python-ws", script, *words)
    found = written(place)
    assert [point["tasks"] for point in found["measurements"]["points"]] == [1, 2, 3]
    assert found["solution"]["layout"]["streamers"] <= FILES


@pytest.mark.alone
@pytest.mark.slow
def test_the_first_run_of_several_is_measured_and_fed_beyond_its_data(place: FcMnist) -> None:
    (place.path / "two.py").write_text(TWO_RUNS)
    done = analyzed(place, "--verify", "python", "two.py", "--compile_only")
    found = written(place)
    assert found["measurements"]["batch_size"] == 128
    assert found["measurements"]["replayed"]
    assert found["verified"]["fed"]["seconds"] == pytest.approx(5, rel=0.1)
    assert done.stderr.count("the wafer on this machine") == 1
    assert "dropped" not in done.stderr
    assert "[input_fn] - shard(): a streamer makes only its own" in done.stdout
    assert "estimator.py" not in done.stdout + done.stderr
