"""csrun checkpoint: commands, and memory use."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from csrun.base import stored
from csrun.cli import frame
from csrun.cli.csrun import csrun
from csrun.records import checkpoints
from csrun.records.torch_names import torch_identity

GPT2 = Path(__file__).parents[2] / "reference_models" / "gpt2"
TENSORS = {
    "fc/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fc/bias": np.array([1.0, -2.0, 4.0], np.float32),
    "momentum/fc/kernel": np.ones((2, 3), np.float32),
    "momentum/fc/bias": np.ones(3, np.float32),
}
OWN = {"seed": "7", "optimizer_state": "momentum"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model_dir"
    place.mkdir()
    for step in (100, 200, 300):
        checkpoints.write(place, step, TENSORS, OWN, 2)
    return place


def said(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    """Output of the command, whose exit code must be this one."""
    assert frame.run(csrun, ["checkpoint", *map(str, words)]) == code
    return capsys.readouterr().out


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_list_shows_steps_sizes_and_which_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model-ckpt-50.json").write_bytes(b"rubbish")
    head, *rows = said(capsys, 0, "list", folder).splitlines()
    assert head.split() == ["STEP", "SIZE", "WRITTEN", "INDEX"]
    assert rows.pop() == "common to all: seed 7, optimizer_state momentum"
    assert [row.split()[0] for row in rows] == ["50", "200", "300"]  # keeps two
    assert "not in the index  damaged: " in rows[0]
    assert "kept" in rows[1]
    assert rows[2].endswith("latest")
    found = json.loads(said(capsys, 0, "list", folder, "-o", "json"))
    sizes = [sum(path.stat().st_size for path in folder.glob("model-ckpt-300.*"))]
    assert [one["nbytes"] for one in found[2:]] == sizes
    assert found[2]["identity"] == OWN


def test_list_shows_in_each_row_what_differs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints.write(folder, 400, TENSORS, {**OWN, "threads": "4"}, 3)
    checkpoints.write(folder, 500, TENSORS, {**OWN, "threads": "8"}, 3)
    _, *rows, common = said(capsys, 0, "list", folder).splitlines()
    assert [row.split()[4:] for row in rows] == [
        ["kept"],
        ["kept", "threads", "4"],
        ["latest", "threads", "8"],
    ]
    assert common == "common to all: seed 7, optimizer_state momentum"


def test_verify_says_every_damage_and_the_newest_good_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, 0, "verify", folder).splitlines() == [
        "model-ckpt-200: good, 4 tensors, 72 bytes",
        "model-ckpt-300: good, 4 tensors, 72 bytes",
        "newest good checkpoint: model-ckpt-300",
    ]
    tensors = folder / "model-ckpt-300.safetensors"
    for offset in (-1, -70):  # momentum/fc/bias, fc/kernel
        flip(tensors, offset)
    lines = said(capsys, 1, "verify", folder).splitlines()
    damaged = [line.split(": ")[2] for line in lines if ": damaged: " in line]
    assert damaged == ["tensor fc/kernel", "tensor momentum/fc/bias"]
    assert lines[-1] == "newest good checkpoint: model-ckpt-200"
    one = said(capsys, 1, "verify", tensors, "-o", "json")
    assert json.loads(one)["newest_good"] == "model-ckpt-200"
    assert said(capsys, 0, "verify", folder / "model-ckpt-200").startswith("model-ckpt-200: good")


def test_verify_reads_manifests_and_the_index_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, index = folder / "model-ckpt-200.json", folder / "checkpoint"
    flip(manifest, -5)
    assert "model-ckpt-200: damaged: its checksum is" in said(capsys, 1, "verify", folder)
    checkpoints.write(folder, 200, TENSORS, OWN, 2)
    assert said(capsys, 0, "verify", folder)
    flip(index, -5)
    assert "index: " in said(capsys, 1, "verify", folder)
    assert frame.run(csrun, ["checkpoint", "verify", str(folder / "model-ckpt-7")]) == 2
    assert "no such checkpoint" in capsys.readouterr().err
    nowhere = folder.parent / "nowhere"
    assert frame.run(csrun, ["checkpoint", "verify", str(nowhere)]) == 2
    assert f"{nowhere}: not a checkpoint" in capsys.readouterr().err


def test_verify_says_what_the_index_names_and_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folder.glob("model-ckpt-300.*"):
        path.unlink()
    said_of_it = "index: it names missing checkpoints: model-ckpt-300"
    assert said(capsys, 1, "verify", folder).splitlines() == [
        "model-ckpt-200: good, 4 tensors, 72 bytes",
        said_of_it,
        "newest good checkpoint: model-ckpt-200",
    ]


def test_verify_takes_no_checkpoint_for_damaged_that_a_training_removes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(place: Path, name: str, *others: Any) -> Any:
        if name == "model-ckpt-200":
            for path in place.glob(f"{name}.*"):
                path.unlink()
        return verify(place, name, *others)

    verify = checkpoints.verify
    monkeypatch.setattr(checkpoints, "verify", removed)
    (good, newest) = said(capsys, 0, "verify", folder).splitlines()
    assert good.startswith("model-ckpt-300: good")
    assert newest == "newest good checkpoint: model-ckpt-300"


def test_diff_measures_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {name: array.copy() for name, array in TENSORS.items()}
    other["fc/bias"][2] = 5.0  # |4 - 5| = 1; norms of (1, -2, 4) and (1, -2, 5): sqrt(21), sqrt(30)
    other["fc/kernel"] = other["fc/kernel"].T.copy()
    other["extra"] = other.pop("momentum/fc/bias")
    checkpoints.write(folder, 400, other, OWN, 2)
    found = json.loads(
        said(capsys, 1, "diff", folder / "model-ckpt-300", folder, "-o", "json"),
    )
    by_name = {one["name"]: one for one in found}
    assert by_name["momentum/fc/kernel"]["is_same"]
    bias = by_name["fc/bias"]
    assert (bias["max_abs"], bias["is_same"]) == (1.0, False)
    assert bias["relative"] == pytest.approx(1 / 30**0.5)
    assert by_name["fc/kernel"]["problem"].startswith("float32[2, 3] in ")
    assert by_name["momentum/fc/bias"]["problem"].endswith("model-ckpt-400.safetensors")
    assert by_name["extra"]["problem"].endswith("model-ckpt-300.safetensors")
    text = said(capsys, 0, "diff", folder, folder / "model-ckpt-400.safetensors")
    assert text == "4 tensors: 4 with identical bits, 0 that differ\n"


def test_diff_tells_bits_from_values_and_numbers_from_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zero, nan = np.zeros(2, np.float32), np.array([np.nan, 1.0], np.float32)
    checkpoints.write(folder, 400, {"zero": zero, "nan": nan, "both": nan}, {}, 2)
    checkpoints.write(folder, 500, {"zero": -zero, "nan": nan[::-1], "both": nan}, {}, 2)
    found = json.loads(said(capsys, 1, "diff", folder / "model-ckpt-400", folder, "-o", "json"))
    assert [one["is_same"] for one in found] == [False, False, True]
    assert (found[0]["max_abs"], found[1]["max_abs"]) == (0.0, None)  # JSON has no NaN


def test_to_torch_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, back = folder.parent / "weights.safetensors", folder.parent / "back"
    said(capsys, 0, "convert", folder, file, "--to", "torch")
    assert set(load_file(file)) == {"fc/kernel", "fc/bias"}  # another model's names are its own
    said(capsys, 0, "convert", file, back, "--from", "torch")
    found = checkpoints.latest(back)
    assert found is not None
    assert found.manifest.is_converted
    assert np.array_equal(found.tensor("fc/kernel"), TENSORS["fc/kernel"])
    for words in (("convert", folder, file, "--to", "torch"), ("convert", file, back)):
        assert frame.run(csrun, ["checkpoint", *map(str, words)]) == 2


def test_a_pytorch_model_gets_its_names_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A root parameter and that of a module named `model` keep different names."""
    names = ["w", "model.w", "h.0.weight"]
    identity = torch_identity(names, {"head.weight": "h.0.weight"}) | {"optimizer_state": ""}
    stored_ones = {"model/w": 1.0, "h/0/weight": 2.0}
    tensors = {name: np.array([value], np.float32) for name, value in stored_ones.items()}
    checkpoints.write(tmp_path, 1, tensors, identity, 1)
    said(capsys, 0, "convert", tmp_path, tmp_path / "a.safetensors", "--to", "torch")
    found = {name: float(array[0]) for name, array in load_file(tmp_path / "a.safetensors").items()}
    assert found == {"w": 1.0, "h.0.weight": 2.0, "head.weight": 2.0}


def test_damage_is_refused_before_a_file_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(folder / "model-ckpt-300.safetensors", -70)
    target = folder.parent / "weights.safetensors"
    code = frame.run(csrun, ["checkpoint", "convert", str(folder), str(target), "--to", "torch"])
    assert (code, list(folder.parent.iterdir())) == (1, [folder])
    assert "the newest good one is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("model_dir", "has checkpoints already: choose another model_dir"),
        ("weights.safetensors", "is not a folder; choose another model_dir"),
    ],
)
def test_no_checkpoint_is_made_over_what_is_there(
    target: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even over checkpoints without an index: the newest one would still be resumed from."""
    file = folder.parent / "weights.safetensors"
    said(capsys, 0, "convert", folder, file, "--to", "torch")
    (folder / "checkpoint").unlink()
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    arguments = ["checkpoint", "convert", str(file), str(folder.parent / target), "--from", "torch"]
    assert frame.run(csrun, arguments) == 2
    assert words in capsys.readouterr().err
    after = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nowhere.safetensors", "made", "--from"), "nowhere.safetensors: cannot be read: "),
        (("twice.safetensors", "made", "--from"), "two tensors map to model/a"),
        (("model_dir", "nowhere/a.safetensors", "--to"), "nowhere is not a folder: create it"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    words: tuple[str, ...], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = np.ones(1, np.float32)
    save_file({"a": one, "model.a": one}, folder.parent / "twice.safetensors")
    source, target, way = words
    paths = str(folder.parent / source), str(folder.parent / target)
    assert frame.run(csrun, ["checkpoint", "convert", *paths, way, "torch"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "None" not in error
    assert not (folder.parent / target).exists()


def test_huggingface_layout_by_a_models_script(tmp_path: Path) -> None:
    """A round trip returns the model's tensors under the names of transformers."""
    v, t, d = 11, 4, 8
    ends = {
        "ln_1.weight": [d], "ln_1.bias": [d], "ln_2.weight": [d], "ln_2.bias": [d],
        "attn.c_attn.weight": [d, 3 * d], "attn.c_attn.bias": [3 * d],
        "attn.c_proj.weight": [d, d], "attn.c_proj.bias": [d],
        "mlp.c_fc.weight": [d, 4 * d], "mlp.c_fc.bias": [4 * d],
        "mlp.c_proj.weight": [4 * d, d], "mlp.c_proj.bias": [d],
    }  # fmt: skip
    shapes = {"wte.weight": [v, d], "wpe.weight": [t, d], "ln_f.weight": [d], "ln_f.bias": [d]}
    shapes |= {f"h.0.{end}": shape for end, shape in ends.items()}
    random = np.random.default_rng(1)
    theirs = {f"transformer.{n}": random.random(s, np.float32) for n, s in shapes.items()}
    config = {"model_type": "gpt2", "vocab_size": v, "n_positions": t, "n_embd": d, "n_layer": 1}
    config |= {"n_head": 2, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "config.json").write_text(json.dumps(config))
    save_file(theirs, saved / "model.safetensors")

    def converted(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "csrun.cli.csrun", "checkpoint", "convert", *words]
        return subprocess.run(
            [*command, "huggingface", "--model", str(GPT2)],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    for words in (("saved", "made", "--from"), ("made", "back", "--to")):
        done = converted(*words)
        assert done.returncode == 0, done.stderr
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == theirs.keys()
    assert all(np.array_equal(back[name], theirs[name]) for name in theirs)
    own = tmp_path / "own"
    own.mkdir()
    (own / "params.yaml").write_text("mine")
    done = converted("saved", "own", "--from")
    assert done.returncode == 2
    assert "params.yaml already exists: move it" in done.stderr
    assert {path.name: path.read_text() for path in own.iterdir()} == {"params.yaml": "mine"}


MEASURED = """
import re, sys
from csrun.cli import frame
from csrun.cli.csrun import csrun
code = frame.run(csrun, sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(code, peak, file=sys.stderr)
"""
COUNT, EACH_BYTES = 16, 8 << 20
COMMANDS = [
    ("verify", "A"),
    ("diff", "A", "B"),
    ("convert", "A", "out.safetensors", "--to", "torch"),
]


def peak_bytes(folder: Path, words: tuple[str, ...]) -> int:
    command = [sys.executable, "-c", MEASURED, "checkpoint", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    code, kilobytes = done.stderr.split()[-2:]
    assert code == "0", done.stderr
    return int(kilobytes) << 10


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_memory_is_that_of_a_few_tensors(words: tuple[str, ...], tmp_path: Path) -> None:
    peaks = []
    for size in (1, EACH_BYTES // 4):
        tensors = {f"t{n}": np.full(size, n, np.float32) for n in range(COUNT)}
        folder = tmp_path / str(size)
        for name in "AB":
            (folder / name).mkdir(parents=True)
            checkpoints.write(folder / name, 1, tensors, {"optimizer_state": ""}, 1)
        peaks.append(peak_bytes(folder, words))
    assert peaks[1] - peaks[0] < COUNT * EACH_BYTES / 2


def test_a_manifest_of_before_tells_the_optimizers_tensors_by_name(
    tmp_path: Path,
) -> None:
    checkpoints.write(tmp_path, 1, TENSORS, {}, 1)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert found.weights == ("fc/kernel", "fc/bias")
    text = (tmp_path / "model-ckpt-1.json").read_bytes()
    assert stored.value_of(text, checkpoints.Manifest).identity == {}
