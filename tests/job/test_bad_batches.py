"""Input that fails during a run: one clear message, with the run's checkpoints kept."""

import re
import subprocess

import pytest
from support.fc_mnist import FOLDER, TWO_STREAMERS, FcMnist

Done = subprocess.CompletedProcess
COMMANDS = ["cpu", "wse"]
DATA_TEXT = (FOLDER / "data.py").read_text()
FUNCTION = "def train_input_fn"
CHAIN = "    return (\n        Dataset.from_arrays(np.arange"
CHAIN_END = "        .map(load)\n    )\n"
IMPORTS = "import numpy as np\n"


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(place: FcMnist, command: str, script: str, *arguments: str) -> "Done[str]":
    """`python run.py`, or the same in a job of two streamers."""
    if command == "cpu":
        return place.run("python", script, *place.own(arguments), command="csrun_cpu")
    return place.run(*TWO_STREAMERS, "python-ws", script, *place.own(arguments))


def with_batches(place: FcMnist, change: str) -> str:
    """A run.py that changes `images, labels`, training batch number k, by this statement."""
    changed = (
        "class Changed:\n"
        "    def __init__(self, batches):\n"
        "        self.batches = batches\n\n"
        "    def __iter__(self):\n"
        "        for k, (images, labels) in enumerate(self.batches):\n"
        f"            {change}\n"
        "            yield images, labels\n\n\n"
    )
    assert all(DATA_TEXT.count(border) == 1 for border in (CHAIN, CHAIN_END, FUNCTION))
    text = DATA_TEXT.replace(CHAIN, CHAIN.replace("(", "Changed((", 1))
    text = text.replace(CHAIN_END, CHAIN_END.replace("    )\n", "    ))\n"))
    return place.copy(data=text.replace(FUNCTION, changed + FUNCTION))


def assert_failed(done: "Done[str]", message: str) -> None:
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if "error: " in line]
    assert re.search(message, line), line


CHANGES = [
    (
        "wse",
        "images = images[:, :27] if k == 60 else images",
        r"batch 60 \(samples 7680 to 7807 of the run\): features must have shape "
        r"\[128, 28, 28\] like the first batch, got \[128, 27, 28\]: return ",
    ),
    (
        "cpu",
        "labels = labels.astype(float) if k == 60 else labels",
        r"batch 60 \(samples 7680 to 7807 of the run\): labels must be int32 like the first "
        "batch, got float64: convert it in input_fn",
    ),
]


@pytest.mark.parametrize(("command", "change", "message"), CHANGES)
def test_batches_that_change(place: FcMnist, command: str, change: str, message: str) -> None:
    place.configure(runconfig__max_steps=80, runconfig__save_checkpoints_steps=5)
    done = run(place, command, with_batches(place, change))
    assert_failed(done, message)
    if command == "wse":  # of two streamers it is the first's
        assert re.search("this streamer failed in batch 60 after 30 batches at", done.stderr)
        assert "rank 2 (streamer) on node3" in done.stderr
    # Two rings of 12 batches lie between the first streamer's 31st batch and the wafer.
    assert any(place.checkpoint(step).exists() for step in range(35, 61, 5))


@pytest.mark.slow
def test_a_batch_of_which_no_label_counts(place: FcMnist) -> None:
    """Its loss is no number; that is not the learning rate's fault, nor a sample's."""
    place.configure(runconfig__max_steps=80, runconfig__save_checkpoints_steps=5)
    change = "labels = np.full_like(labels, -100) if k == 12 else labels"
    message = (
        r"error: step 13: all labels of labels equal ignore_index \(-100\), so the loss is "
        "undefined: training stopped before this update; the last good checkpoint is "
        "model-ckpt-10; drop such batches in input_fn$"
    )
    assert_failed(run(place, "cpu", with_batches(place, change)), message)


NOT_FINITE = (
    "if k == 60: images = images.copy(); images[40:42, 3, 3] = np.nan; images[50, 0] = np.inf"
)


@pytest.mark.slow
def test_values_that_are_not_finite_are_found_when_asked_for(place: FcMnist) -> None:
    script = with_batches(place, NOT_FINITE)
    place.configure(runconfig__max_steps=80, runconfig__check_numerics=True)
    assert_failed(
        run(place, "wse", script),
        r"batch 60, row 40 \(sample 7720 of the run\): features is not finite; the batch has 2 NaN "
        "and 28 Inf as float32, in 3 rows: clean the data",
    )


def test_without_the_check_the_loss_tells(place: FcMnist) -> None:
    place.configure(runconfig__max_steps=80)
    done = run(place, "cpu", with_batches(place, NOT_FINITE))
    assert_failed(done, "loss is nan at step 61: .*runconfig.check_numerics: true")


@pytest.mark.slow
def test_the_check_costs_nothing_but_time(trained: FcMnist) -> None:
    """Finite data: the same weights with it and without."""
    place = trained
    expected = place.checkpoint(20).read_bytes()
    place.configure(
        runconfig__max_steps=20, runconfig__save_checkpoints_steps=5, runconfig__check_numerics=True
    )
    assert place.cpu("-o", "checked").returncode == 0
    assert place.checkpoint(20, "checked").read_bytes() == expected


@pytest.mark.parametrize("streamers", ["2", pytest.param("3", marks=pytest.mark.slow)])
def test_a_data_set_that_ends_too_early(place: FcMnist, streamers: str) -> None:
    """500 of the shipped images, each once: 3 whole batches."""
    text = DATA_TEXT.replace("np.arange(variants * len(images))", "np.arange(500)")
    script = place.copy(data=text.replace("        .repeat()\n", ""))
    layout = ("--total-nodes", "3", "--tasks-per-node", streamers, "--cpus-per-task", "1")
    done = place.run(*layout, "python-ws", script, *place.own(()))
    assert done.returncode == 0, done.stderr
    said = "The dataset ended at step 3 of 20: call .repeat() in input_fn, or train fewer steps"
    assert said in done.stdout + done.stderr
    assert place.checkpoint(3).exists()


@pytest.mark.parametrize(("command", "condition"), [("cpu", "True"), ("wse", "rank > 1")])
def test_an_input_function_that_returns_nothing(
    place: FcMnist, command: str, condition: str
) -> None:
    where = '    images, labels = read_digits(options.data_dir, "train")\n'
    assert where in DATA_TEXT
    rank = "int(os.environ['SLURM_PROCID'])"
    nothing = f"    if {condition.replace('rank', rank)}:\n        return None\n"
    text = DATA_TEXT.replace(where, where + nothing, 1)
    script = place.copy(data=text.replace(IMPORTS, f"import os\n{IMPORTS}", 1))
    done = run(place, command, script)
    assert_failed(done, "input_fn: must return a .*, got NoneType")
    assert "(streamer)" in done.stderr or condition == "True"


@pytest.mark.slow
def test_an_input_function_that_fails_in_its_third_pass(place: FcMnist, command: str) -> None:
    """2,048 samples are 16 batches a pass: with 32 steps two passes have been trained."""
    text = DATA_TEXT.replace("np.arange(variants * len(images))", "np.arange(2048)")
    where = "        variant, sample = np.divmod("
    bug = (
        "        if os.path.exists('model_dir/model-ckpt-32.json'):\n"
        "            raise KeyError('third pass')\n"
    )
    text = text.replace(where, bug + where).replace(IMPORTS, f"import os\n{IMPORTS}", 1)
    place.configure(runconfig__max_steps=10**6, runconfig__save_checkpoints_steps=32)
    done = run(place, command, place.copy(data=text))
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "Traceback (most recent call last)" in output
    assert "KeyError: 'third pass'" in output
    assert re.search(r"input_fn: map load \(data.py:\d+\) failed at sample \d+", output)
    found = re.search(r"failed in batch (\d+) after \d+ batches at", output)
    assert found
    assert int(found[1]) >= 32
    assert place.checkpoint(32).exists()
