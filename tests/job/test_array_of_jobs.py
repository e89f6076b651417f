"""csrun_wse --array: elements as separate jobs, one table, failures and cancellation."""

import csv
import io
import json
import signal
from pathlib import Path

import pytest
from support.fc_mnist import RUN, TWO_STREAMERS, FcMnist
from support.jobs import Sandbox, until

TINY = ("--params", "params.yaml", "--max_steps", "4")


@pytest.fixture
def digits(tmp_path: Path) -> FcMnist:
    place = FcMnist(tmp_path)
    place.configure(model__hidden_sizes=[5], runconfig__log_steps=1)
    return place


def rows_of(place: Sandbox, array_id: int) -> list[dict[str, str]]:
    done = place.csctl("get", "array", str(array_id), "-o", "csv")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_two_elements_train_with_their_values_and_one_table(digits: FcMnist) -> None:
    rates = "optimizer.learning_rate=0.1,0.001"
    done = digits.run(
        "--array", "3-4", "--set", rates, *TWO_STREAMERS, "python-ws", RUN, *TINY
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    heading, *lines = done.stdout.splitlines()[-3:]
    assert heading.split() == [
        "INDEX", "JOB", "LEARNING_RATE", "STATE", "STEPS", "LOSS", "RATE", "MODEL_DIR", "WHY",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == ["3", "4"]
    rows = rows_of(digits, 1)
    assert [row["optimizer.learning_rate"] for row in rows] == ["0.1", "0.001"]
    assert [(row["state"], row["steps"]) for row in rows] == [("COMPLETED", "4")] * 2
    alone = digits.cpu(
        *TINY, "--set", f"optimizer.learning_rate={rows[1]['optimizer.learning_rate']}",
        "--model_dir", "alone",
    )  # fmt: skip
    assert f"Loss for final step: {rows[1]['loss']}" in alone.stdout + alone.stderr
    assert rows[0]["loss"] != rows[1]["loss"]
    for row in rows:
        assert row["model_dir"] == str(digits.model_dir / f"array_{row['index']}")
        command = json.loads(Path(row["model_dir"], "train", "command_train.json").read_text())
        assert command["words"][1:3] == ["-m", "csrun.cli.csrun_wse"]
        assert "--array" not in command["words"]
        assert command["words"][-2:] == ["--model_dir", f"model_dir/array_{row['index']}"]
    shown = digits.csctl("get", "jobs", "-l", "array=1", "-o", "json")
    labels = [job["labels"] for job in json.loads(shown.stdout)]
    assert {each["array-index"] for each in labels} == {"3", "4"}


def test_a_failed_element_stops_no_other_and_its_code_is_that_of_all(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    place.script(
        "import os, sys, yaml\n"
        "index = os.environ['CSRUN_ARRAY_TASK_ID']\n"
        "assert index == os.environ['SLURM_ARRAY_TASK_ID'] == sys.argv[1]\n"
        "assert yaml.safe_load(open(sys.argv[3])) == {'a': {'b': int(index) + 1}}\n"
        "assert sys.argv[4] == '--c=7'\n"
        "open(f'ran-{index}', 'w').close()\n"
        "sys.exit(3 if index == '0' else 0)\n"
    )
    one = ("--total-nodes", "1", "--tasks-per-node", "1")
    (tmp_path / "own.yaml").write_text("a: {b: 0}\n")
    values = ("--set", "a.b=1,3,5", "--set", "c=7")
    command = ("python", "run.py", "%a", "--params", "own.yaml")
    done = place.run("--array", "0-4:2%1", *values, *one, *command)
    assert done.returncode == 3, done.stderr
    place.wait_for("ran-0", "ran-2", "ran-4")
    assert "0: csrun_wse: error: rank 0 (chief) on node1 ended with exit code 3" in done.stderr
    assert [row["state"] for row in rows_of(place, 1)] == ["FAILED", "COMPLETED", "COMPLETED"]


@pytest.mark.parametrize("way", ["signal", "csctl"])
def test_all_are_cancelled(tmp_path: Path, way: str) -> None:
    place = Sandbox(tmp_path)
    place.script("import sys, time\nopen(f'runs-{sys.argv[1]}', 'w').close()\ntime.sleep(600)\n")
    one = ("--total-nodes", "1", "--tasks-per-node", "1")
    with place.start("--array", "1-3%2", *one, "python", "run.py", "%a") as process:
        place.wait_for("runs-1", "runs-2")
        if way == "signal":
            process.send_signal(signal.SIGINT)
        else:
            assert place.csctl("cancel", "array", "1").stdout == "array 1: cancelled\n"
        out, _ = process.communicate(timeout=300)
    assert process.returncode == (130 if way == "signal" else 143)
    assert out.count("CANCELLED") == 3
    assert not (tmp_path / "runs-3").exists()
    assert "no pending or running jobs" in place.csctl("cancel", "array", "1").stdout


def test_elements_in_the_background_are_found_again(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    place.script("import sys\nopen(f'ran-{sys.argv[1]}', 'w').close()\n")
    one = ("--total-nodes", "1", "--tasks-per-node", "1")
    done = place.run("--detach", "--array", "1-2", *one, "python", "run.py", "%a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("array 1: 'csctl get array 1' shows its results\n")
    until(lambda: [row["state"] for row in rows_of(place, 1)] == ["COMPLETED"] * 2)
    place.wait_for("ran-1", "ran-2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--array", "1-2", "--set", "optimizer.learning_rat=1,2"), "unknown key; did you mean"),
        (("--array", "1-2", "--set", "optimizer.learning_rate=1,x"), "must be a number >= 0"),
        (("--array", "1-2", "--set", "optimizer.learning_rate=1,2,3"), "has 3 values"),
        (("--array", "1-2%1", "--detach"), "has no effect with --detach"),
        (("--array", "1-2", "--total-nodes", "99"), "--total-nodes must be 1 to"),
        (("--set", "a=1"), "--set needs --array"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    digits: FcMnist, words: tuple[str, ...], message: str
) -> None:
    done = digits.run(*words, "python-ws", RUN, *TINY)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not (digits.path / "state").exists()


def test_a_dry_run_shows_the_elements(digits: FcMnist) -> None:
    words = ("--array", "1-2", "--set", "runconfig.seed=%a", *TWO_STREAMERS)
    done = digits.run("--dry-run", *words, "python-ws", RUN, *TINY)
    assert done.returncode == 0, done.stderr
    assert "--set runconfig.seed=2 --model_dir model_dir/array_2" in done.stdout
    assert "On a cluster: srun" in done.stdout
    shown = json.loads(digits.run("--dry-run", "--json", *words, "python-ws", RUN, *TINY).stdout)
    assert [each["index"] for each in shown["elements"]] == [1, 2]
    assert not (digits.path / "state").exists()
