"""Which heavy packages a script will import, by its text."""

from pathlib import Path

import pytest

from csrun.launch.script_imports import heavy_imports

FRONT_END = ("cerebras_torch", "torch._dynamo")
TEXTS = [
    ("import torch", ("torch",)),
    ("from torch import nn\nimport cerebras_torch as cbtorch", ("torch", *FRONT_END)),
    ("import torch.nn.functional as F", ("torch",)),
    ("def main():\n    import cerebras_torch", FRONT_END),
    ("import numpy, torchvision", ()),
    ("from . import torch", ()),
    ("print('import torch')", ()),
    ("import torch\nthis is no Python", ()),
    ("\0", ()),
]


@pytest.mark.parametrize("interpreter", ["python", "python3", "python-pt", "python-ws"])
@pytest.mark.parametrize(("text", "found"), TEXTS)
def test_imports_are_found_under_every_interpreter(
    text: str, found: tuple[str, ...], interpreter: str, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(text)
    assert heavy_imports((interpreter, str(script), "--mode", "train")) == found


def test_those_of_modules_beside_it_count_too(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import model, run")
    (tmp_path / "model.py").write_text("import layers")
    (tmp_path / "layers.py").write_text("import model, torch")
    assert heavy_imports(("python", str(tmp_path / "run.py"))) == ("torch",)


@pytest.mark.parametrize(
    "command", [("hostname",), ("python",), ("python", "-c", "import torch"), ("python", "no.py")]
)
def test_what_is_no_script_of_ours_imports_nothing(command: tuple[str, ...]) -> None:
    assert heavy_imports(command) == ()
