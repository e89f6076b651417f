"""docs/model_dir.md matches a run: its files, events and checkpoint."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fc_mnist import FOLDER, FcMnist, scalars
from support.pages import CHECKOUT, blocks, first_cells, section

from csrun.data.formats import idx
from csrun.executable import machine_code

PAGE = CHECKOUT / "docs" / "model_dir.md"


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> FcMnist:
    """Folder in which fc_mnist was trained for some steps, and evaluated."""
    place = FcMnist(tmp_path_factory.mktemp("run"))
    place.configure(runconfig__max_steps=200)
    for mode in ("train", "eval"):
        done = place.cpu("--mode", mode)
        assert done.returncode == 0, done.stderr
    return place


def event_tags(folder: Path) -> set[str]:
    files = folder.glob("events.*")
    return {tag for path in files for _, values in scalars(path) for tag in values}


def test_the_files_of_the_tables_are_there(after: FcMnist) -> None:
    model_dir = after.model_dir
    text = PAGE.read_text().split("## Checkpoints")[0]
    for name in first_cells(text):
        pattern = re.sub(r"<\w+>", "*", name).rstrip("/")
        if name != "predict/":
            assert list(model_dir.glob(pattern)), name
    assert (model_dir / "eval" / "params_eval.yaml").exists()
    for line in section(PAGE, "The compile").split("\n### ")[0].splitlines():
        for name in re.findall(r"`([\w.]+\.\w+)`", line.split(" | ")[0]):
            name = name.replace(".html", "compile_report.html") if name == ".html" else name
            is_wanted = machine_code.is_supported() or name not in ("kernels.ll", "kernels.a")
            assert list(model_dir.glob(f"tfcs_*/{name}")) or not is_wanted, name


def test_the_tags_are_those_of_the_events(after: FcMnist) -> None:
    named = set(first_cells(section(PAGE, "Events")))
    assert named | {"accuracy"} == event_tags(after.model_dir)
    assert event_tags(after.model_dir / "eval") == {"loss", "accuracy"}


def test_the_keys_are_those_of_performance_json(after: FcMnist) -> None:
    rows = [line.split(" | ")[0] for line in section(PAGE, "performance.json").splitlines()]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    found = json.loads((after.model_dir / "performance" / "performance.json").read_text())
    assert named == set(found)


def test_a_checkpoint_opens_without_csrun_and_computes_the_same(
    after: FcMnist, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(after.path)
    opened: dict[str, Any] = {}
    for script in blocks(section(PAGE, "Checkpoints")):
        if "import" in script:
            exec(script, opened)
    assert opened["tensors"]["fc_0/kernel"].shape == (784, 50)
    assert opened["tensors"]["momentum/fc_0/kernel"].shape == (784, 50)
    images = idx.read(idx.find(FOLDER / "data", "t10k-images-idx3-ubyte"))
    labels = idx.read(idx.find(FOLDER / "data", "t10k-labels-idx1-ubyte"))
    with torch.no_grad():
        logits = opened["model"](torch.from_numpy(images.astype(np.float32) / 255))
    accuracy = float((logits.argmax(1).numpy() == labels).mean())
    (evaluated,) = (after.model_dir / "eval").glob("events.*")
    (found,) = (values["accuracy"] for _, values in scalars(evaluated) if "accuracy" in values)
    assert found == pytest.approx(accuracy)
