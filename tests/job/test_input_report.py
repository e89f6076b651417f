"""Input Function Report by the commands: when it is printed and stored."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fc_mnist import FOLDER, FcMnist

BEGIN = "Suggestions to improve input_fn performance"
END = "End of input_fn suggestions"
FINE = "Input Function Report: no suggestions."
REPORT = "input_fn_report.txt"

SHIPPED = """
        Dataset.from_arrays(np.arange(variants * len(images)))
        .shuffle(seed=options.shuffle_seed)
        .repeat()
        .batch(options.batch_size, drop_remainder=True)
"""
BATCHES_SHUFFLED = """
        Dataset.from_arrays(np.arange(variants * len(images)))
        .batch(options.batch_size, drop_remainder=True)
        .shuffle(seed=options.shuffle_seed)
        .repeat()
"""


@pytest.fixture
def bad(place: FcMnist) -> str:
    """run.py of a copy that shuffles batches in place of samples."""
    text = (FOLDER / "data.py").read_text()
    assert SHIPPED in text
    return place.copy(data=text.replace(SHIPPED, BATCHES_SHUFFLED))


def reports(place: FcMnist) -> list[Path]:
    return sorted(place.model_dir.glob(f"tfcs_*/{REPORT}"))


def test_a_bad_input_fn_is_told_at_compile_and_kept(place: FcMnist, bad: str) -> None:
    done = place.run("python", bad, *place.own(("--compile_only",)), command="csrun_cpu")
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    told = text[text.index(BEGIN) : text.index(END)]
    line = 1 + (place.path / "copy" / "data.py").read_text().splitlines().index(
        "        .shuffle(seed=options.shuffle_seed)"
    )
    assert (
        f"[input_fn] - shuffle(): samples are shuffled, not batches (warning, data.py:{line})"
        in (told)
    )
    assert "change: move .shuffle(…) before .batch(…)" in told
    [kept] = reports(place)
    assert kept.read_text().startswith(told)
    assert f"Input Function Report: {kept.relative_to(place.path)}" in text


def test_the_shipped_input_fn_has_nothing_to_improve(trained_once: Callable[[str], Any]) -> None:
    trained = trained_once("cpu")
    assert FINE in trained.done.stderr
    assert BEGIN not in trained.done.stderr
    [kept] = reports(trained.place)
    assert "Nothing to improve was found." in kept.read_text()
    row = r"^ map\(load.*\) +data\.py:\d+ +batch +[\d.]+( ± [\d.]+)? +\d+%$"
    assert re.search(row, kept.read_text(), re.MULTILINE)


def test_a_compile_taken_from_the_cache_has_the_report_of_this_input_fn(
    trained: FcMnist, bad: str
) -> None:
    place = trained
    done = place.run("python", bad, *place.own(("--compile_only",)), command="csrun_cpu")
    text = done.stdout + done.stderr
    assert "Cached compilation found" in text
    assert BEGIN in text
    [kept] = reports(place)
    assert "[input_fn] - shuffle()" in kept.read_text()


def test_validate_only_tells_it_and_leaves_nothing(place: FcMnist, bad: str) -> None:
    done = place.run("python", bad, *place.own(("--validate_only",)), command="csrun_cpu")
    assert BEGIN in done.stdout + done.stderr
    assert not place.model_dir.exists()


@pytest.mark.slow
def test_training_and_evaluation_in_turn_tell_it_once(place: FcMnist, bad: str) -> None:
    done = place.run("python", bad, *place.own(("--mode", "train_and_eval")), command="csrun_cpu")
    text = done.stdout + done.stderr
    # a measured finding may be new in the evaluation: it is another one
    told = re.findall(r"\[input_fn\] - (\w+\(\): [^;(]+)", text)
    assert "shuffle(): samples are shuffled, not batches " in told
    assert len(told) == len(set(told))
    assert FINE not in text
    assert len(reports(place)) == 2


@pytest.mark.slow
def test_the_chief_alone_tells_it(place: FcMnist, bad: str) -> None:
    layout = ("--total-nodes", "3", "--tasks-per-node", "2", "--cpus-per-task", "1")
    done = place.run(*layout, "python-ws", bad, *place.own(()))
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count(BEGIN) == 1
    logs = {path.name: path.read_text() for path in place.jobs.rglob("*.log")}
    assert [name for name, text in logs.items() if BEGIN in text] == ["rank-00000.log"]
