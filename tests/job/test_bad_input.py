"""User errors: one clear line with the right exit code, and no leftovers."""

import re
import subprocess
import sys
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fc_mnist import RUN, TWO_STREAMERS, FcMnist

from csrun.base.mode import ExecutionMode
from csrun.data import DataError
from csrun.site import load as load_site
from csrun.system import Power, SystemState, save_state

Done = subprocess.CompletedProcess
SHIPPED_SITE = Path(__file__).parents[2] / "site_configs" / "local.yaml"


def assert_refused(done: "Done[str]", code: int, message: str) -> None:
    """One error line that says this, no traceback."""
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert "Traceback" not in text
    errors = [line for line in text.splitlines() if "error: " in line]
    assert len(errors) == 1, text
    assert re.search(message, errors[0]), errors[0]


def each_by_one_command(names: str, cases: list[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Each case by one of both commands, in turn: the message comes from one place."""
    turns = zip(cycle(["cpu", "wse"]), cases, strict=False)
    return pytest.mark.parametrize(
        ("command", *names.split(", ")), [(command, *case) for command, case in turns]
    )


LAYOUTS = [
    (("--total-nodes", "4", "--single-task-nodes", "4"), "--single-task-nodes must be 0 to 3.*4"),
    (("--total-nodes", "4", "--single-task-nodes", "1"), "at least 2 for python-ws.*got 1"),
    (("--total-nodes", "2"), "--total-nodes must be at least 3 for python-ws.*got 2"),
    (("--totl-nodes", "4"), "'--totl-nodes'.*--total-nodes"),
]


@pytest.mark.parametrize(("layout", "message"), LAYOUTS)
def test_a_layout_that_is_not_possible(place: FcMnist, layout: tuple[str], message: str) -> None:
    assert_refused(place.wse(layout=layout), 2, message)
    assert [path.name for path in place.path.iterdir()] == ["params.yaml"]


# Of each kind of mistake one: tests/params has all that a file and a command line can be wrong in.
PARAMS = [
    ("momentum: 0.9 -> momentun: 0.9", "momentun: unknown key; did you mean momentum"),
    ("seed: 1 -> seed: -1", "runconfig.seed: .*-1"),
]


@each_by_one_command("change, message", PARAMS)
def test_a_params_file_that_is_wrong(
    place: FcMnist, command: str, change: str, message: str
) -> None:
    place.configure()
    file = place.path / "params.yaml"
    old, new = change.split(" -> ")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert_refused(getattr(place, command)("--params", "params.yaml"), 2, message)
    assert not place.model_dir.exists()


OPTIONS = [
    (("--checkpoint_path", "nowhere"), "nowhere: no checkpoint; the working directory has none"),
    (("--mode", "eval"), "model_dir: no checkpoint to restore; train first"),
]


@each_by_one_command("arguments, message", OPTIONS)
def test_an_option_that_is_wrong(
    place: FcMnist, command: str, arguments: tuple[str, ...], message: str
) -> None:
    assert_refused(getattr(place, command)(*arguments), 2, message)
    assert not place.model_dir.exists()


SYSTEMS = [
    (
        "nowhere",
        r"no such system on site .*known: cs2-01 \(127.0.0.1, PIPELINED, .*cs2-02 \(127.0.0.2, W",
    ),
    ("127.0.0.1", "cs2-01 is in PIPELINED mode, this run needs WEIGHT_STREAMING; use cs2-02"),
]


@pytest.mark.parametrize(("cs_ip", "message"), SYSTEMS)
def test_a_system_that_cannot_run_it(place: FcMnist, cs_ip: str, message: str) -> None:
    done = place.wse("--cs_ip", cs_ip)
    assert_refused(done, 2, message)
    assert "srun: job" not in done.stderr  # it was not even queued
    assert not place.model_dir.exists()


def test_a_system_in_standby(place: FcMnist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSRUN_STATE_DIR", str(place.path / "state"))
    site = load_site("local")
    save_state(site, site.systems[1], SystemState(Power.STANDBY, ExecutionMode.WEIGHT_STREAMING))
    assert_refused(place.wse("--cs_ip", "cs2-02"), 1, "cs2-02 is in STANDBY.*system activate")
    assert_refused(place.wse(), 2, "site local has no ACTIVE system in WEIGHT_STREAMING mode")
    assert not place.model_dir.exists()


# fc_0: kernel and bias take 628,032 bytes, the batch's outputs and their mask 128,000; a pipeline
# keeps gradients and momentum, too. Streamed, the kernel comes in parts of 30 rows, 24,000 bytes,
# which are beside the outputs.
STREAMING = (
    r"fc_0/kernel\[0:30\] needs 126,400 bytes of [\d,]+ on the wafer, cs2-02 has 196,608: "
    r"lower batch_size to \d+$"
)
PIPELINED = (
    r"fc_0 needs 2,012,096 bytes of [\d,]+ on the wafer, cs2-01 has 442,368: "
    r"use weight streaming \(csrun_wse with python-ws\)$"
)
TOO_LARGE = [
    ("python-ws", 4, ("--cs_ip", "cs2-02"), STREAMING),
    ("python", 9, (), PIPELINED),
    (None, 9, (), PIPELINED),
]


@pytest.mark.slow
@pytest.mark.parametrize(("interpreter", "cores", "cs_ip", "message"), TOO_LARGE)
def test_a_model_larger_than_the_sites_system(
    place: FcMnist,
    monkeypatch: pytest.MonkeyPatch,
    interpreter: str | None,
    cores: int,
    cs_ip: tuple[str, ...],
    message: str,
) -> None:
    """Whether the system is named, the first in its mode, or what a run on the CPU stands for."""
    site = place.path / "small.yaml"
    few = f"usable_cores: {cores}"
    site.write_text(SHIPPED_SITE.read_text().replace("usable_cores: 745500", few))
    place.configure(model__hidden_sizes=[200], runconfig__micro_batch_size=128)  # the whole batch
    arguments = ("--mode=compile_only", *cs_ip)
    if interpreter is None:
        monkeypatch.setenv("CSRUN_SITE", str(site))
        done = place.cpu(*arguments)
    else:
        layout = ("--site", str(site), *TWO_STREAMERS)
        done = place.wse(*arguments, layout=layout, interpreter=interpreter)
    assert_refused(done, 2, f"layer {message}")


def test_a_script_that_is_not_there(place: FcMnist) -> None:
    done = place.run(*TWO_STREAMERS, "python-ws", "walk.py")
    assert_refused(done, 2, "walk.py: no such file")


@pytest.mark.parametrize("command", ["cpu", pytest.param("wse", marks=pytest.mark.slow)])
def test_a_model_dir_that_cannot_be_written(place: FcMnist, command: str) -> None:
    (place.path / "file").touch()
    message = "model_dir file/below: cannot be written: Not a directory; choose another"
    assert_refused(getattr(place, command)("-o", "file/below"), 2, message)


def test_a_state_folder_that_cannot_be_written(place: FcMnist) -> None:
    (place.path / "state").touch()
    assert_refused(place.wse(), 2, "state folder .*/state/local: cannot be written")
    assert not place.model_dir.exists()


def write_idx(path: Path, array: np.ndarray) -> None:
    """A file in MNIST's format. Source: the format's description at MNIST's home."""
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def write_digits(folder: Path, images: tuple[int, ...], labels: np.ndarray) -> None:
    """A user's own training files."""
    folder.mkdir()
    write_idx(folder / "train-images-idx3-ubyte", np.ones(images))
    write_idx(folder / "train-labels-idx1-ubyte", labels)


ELEVEN = np.where(np.arange(500) == 321, 11, 3)
DATA = [
    (
        (500, 28, 28),
        ELEVEN,
        r"batch \d+, row \d+ \(sample (321|821|1321|1821|2321)\): labels must be in 0\.\.9, got 11",
    ),
    ((0, 28, 28), np.zeros(0), "digits/train-images-idx3-ubyte: there are no images in it"),
    ((500, 32, 30), ELEVEN % 10, r"images must be 28 by 28 pixels, got shape \[500, 32, 30\]"),
    ((500, 28, 28), np.zeros(400), r"500 images, but labels of shape \[400\]"),
]


@pytest.mark.parametrize(("images", "labels", "message"), DATA[1:])
def test_files_that_are_no_digits(
    fc_mnist: Path, tmp_path: Path, images: tuple[int, ...], labels: np.ndarray, message: str
) -> None:
    write_digits(tmp_path / "digits", images, labels)
    with pytest.raises(DataError, match=message):
        import_module("data").read_digits(str(tmp_path / "digits"), "train")


@each_by_one_command("images, labels, message", DATA[:2])
def test_data_that_is_wrong(
    place: FcMnist, command: str, images: tuple[int, ...], labels: np.ndarray, message: str
) -> None:
    write_digits(place.path / "digits", images, labels)
    place.configure(train_input__data_dir="digits", runconfig__max_steps=20)
    assert_refused(getattr(place, command)(), 1, message)
    assert not stray_files(place.model_dir)


def stray_files(folder: Path) -> list[Path]:
    """Temporary files and locks that a run must not leave."""
    return [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_a_loss_that_is_not_finite(place: FcMnist) -> None:
    """The first step's update makes weights of 1e28; step 2 is the last that could be computed."""
    place.configure(optimizer__learning_rate=1e30)
    message = r"loss is (nan|inf) at step 2: .*the last good checkpoint is model-ckpt-0;"
    assert_refused(place.wse(), 1, message)
    assert sorted(path.name for path in place.model_dir.glob("model-ckpt*")) == [
        "model-ckpt-0.json",
        "model-ckpt-0.safetensors",
    ]
    assert not stray_files(place.model_dir)


@pytest.mark.slow
def test_weights_that_are_not_finite_push_no_good_checkpoint_out(place: FcMnist) -> None:
    """A learning rate over float32's range: the loss of step 1 is finite, what follows is not."""
    place.configure(
        optimizer__learning_rate=1e39,
        runconfig__save_checkpoints_steps=1,
        runconfig__keep_checkpoint_max=1,
    )
    message = r"tensor fc_\S+ is not finite after step 1: .*last good checkpoint is model-ckpt-0;"
    assert_refused(place.wse(), 1, message)
    assert place.checkpoint(0).exists()
    assert not place.checkpoint(1).exists()


@pytest.mark.slow
def test_the_checkpoint_before_the_one_that_gave_a_bad_loss_is_offered(place: FcMnist) -> None:
    place.configure(optimizer__learning_rate=1e30, runconfig__save_checkpoints_steps=1)
    message = "last good checkpoint is model-ckpt-0, checkpoint_path model_dir/model-ckpt-0; lower"
    assert_refused(place.wse(), 1, message)
    place.configure(runconfig__max_steps=3)
    done = place.cpu("--checkpoint_path", "model_dir/model-ckpt-0")
    assert done.returncode == 0, done.stderr
    assert place.checkpoint(3).exists()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_a_checkpoint_without_its_tensors(trained: FcMnist) -> None:
    trained.checkpoint(20).unlink()
    done = trained.cpu("--max_steps", "30")
    assert_refused(done, 1, "model-ckpt-20.safetensors no longer exists.* checkpoint_path")
    assert "the newest good one is model_dir/model-ckpt-15.safetensors:" in done.stderr


@pytest.mark.slow
def test_the_one_before_a_damaged_checkpoint_is_offered_and_good(trained: FcMnist) -> None:
    place, longer, message = trained, ("--max_steps", "30"), "model-ckpt-20.safetensors is damaged"
    flip_a_bit(place.checkpoint(20))
    done = place.wse(*longer)
    assert_refused(done, 1, message)
    offered = re.search(r"the newest good one is (\S+):", done.stderr)
    assert offered
    assert_refused(place.cpu("--mode", "eval"), 1, message)
    done = place.wse(*longer, "--checkpoint_path", offered[1])
    assert done.returncode == 0, done.stderr
    assert "Restoring parameters from model_dir/model-ckpt-15.safetensors" in done.stdout
    assert place.checkpoint(30).exists()


@pytest.mark.slow
def test_another_model_than_the_checkpoints(trained: FcMnist) -> None:
    place = trained
    place.configure(model__hidden_sizes=[50, 40] + [50] * 8, runconfig__max_steps=30)
    done = place.wse()
    message = (
        r"model-ckpt-20.safetensors does not fit the model: tensor fc_1/kernel: the checkpoint has "
        r"float32\[50, 50\], the model float32\[50, 40\]; .*tensor fc_2/kernel: "
    )
    assert_refused(done, 2, message)
    assert "fc_3/kernel" not in done.stderr


def test_a_rerun_has_nothing_to_do(trained_on_system: FcMnist) -> None:
    place = trained_on_system
    before = place.checkpoint(20).stat().st_mtime_ns
    done = place.wse()
    assert done.returncode == 0, done.stderr
    assert "model_dir is at global step 20 of 20: nothing to train" in done.stdout
    assert place.checkpoint(20).stat().st_mtime_ns == before
    place.configure(model__hidden_sizes=[50, 40] + [50] * 8)
    assert_refused(place.cpu(), 2, "does not fit the model: tensor fc_1/kernel")
    place.configure(runconfig__cs_ip="nowhere")
    assert_refused(place.wse(), 2, "nowhere")


MODEL = Path(RUN).parent / "model.py"


def test_shapes_that_do_not_fit(place: FcMnist) -> None:
    text = MODEL.read_text()
    assert "logits = " in text
    new = "logits = hidden + nn.flatten(features) #"
    script = place.copy(model=text.replace("logits = ", new, 1))
    done = place.run(*TWO_STREAMERS, "python-ws", script, *place.own(()))
    message = r"model.py:(\d+): add: shapes \[128, 50\] and \[128, 784\] do not broadcast"
    assert_refused(done, 2, message)
    assert not place.model_dir.exists()


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("cpu", "--validate_only"),
        pytest.param("wse", "--compile_only", marks=pytest.mark.slow),
    ],
)
def test_an_operator_without_kernel_names_the_users_line(
    place: FcMnist, command: str, option: str
) -> None:
    """A softmax over the samples, which no function of csrun.nn writes down so."""
    right = "nn.softmax_cross_entropy(logits, labels)"
    source = (Path(RUN).parent / "model.py").read_text()
    (line,) = [n for n, text in enumerate(source.splitlines(), 2) if right in text]
    softmax = "logits.tracer.emit(SoftmaxOp, logits, dim=0)"
    source = "from csrun.cirh.ops.normalization import SoftmaxOp\n" + source
    other = f"{right} + nn.sum({softmax}, axis=(0, 1))"
    script = place.copy(model=source.replace(right, other))
    arguments = [script, *place.own((option,))]
    done = (
        subprocess.run([sys.executable, *arguments], cwd=place.path, capture_output=True, text=True)
        if command == "cpu"
        else place.run(*TWO_STREAMERS, "python-ws", *arguments)
    )
    where = rf"copy/model\.py:{line}: layer model: no kernel for cirh\.softmax of"
    assert_refused(done, 2, where)
    assert not list(place.path.glob("model_dir/tfcs_*"))
