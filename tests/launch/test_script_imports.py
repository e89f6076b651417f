"""Heavy packages that a script will import, from its text."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from csrun.base.errors import UsageError
from csrun.jobs.request import JobRequest
from csrun.launch import dry_run, launch, script_imports
from csrun.launch.script_imports import heavy_imports, preloaded
from csrun.launch.user_command import UserCommand
from csrun.site import load

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
    assert heavy_imports(UserCommand((interpreter, str(script), "--mode", "train"))) == found


def test_those_of_modules_beside_it_count_too(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import model, run")
    (tmp_path / "model.py").write_text("import layers")
    (tmp_path / "layers.py").write_text("import model, torch")
    assert heavy_imports(UserCommand(("python", str(tmp_path / "run.py")))) == ("torch",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os, numpy\nfrom pathlib import Path", ()),
        ("import plain", ()),
        ("this is no Python", ()),
        ("from csrun import nn", ("csrun.nn",)),
        ("import user", ("csrun.nn",)),
        ("import a_package", ("csrun.nn",)),  # which may import csrun, as the next two may
        ("import importlib", ("csrun.nn",)),
        ("def main():\n    import runpy", ("csrun.nn",)),
        ("import os, torch", ("csrun.nn", "torch")),
    ],
)
def test_a_script_that_cannot_import_csrun_waits_for_no_import(
    text: str, found: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "plain.py").write_text("import json, run")
    (tmp_path / "user.py").write_text("import csrun.nn")
    (tmp_path / "run.py").write_text(text)
    command = UserCommand(("python-ws", str(tmp_path / "run.py")))
    assert preloaded(command, ("csrun.nn",)) == found


@pytest.mark.parametrize("words", [("python", "-c", "import os"), ("python", "-m", "a_module")])
def test_what_is_no_script_may_import_csrun(words: tuple[str, ...]) -> None:
    assert preloaded(UserCommand(words), ("csrun.nn",)) == ("csrun.nn",)


@pytest.mark.parametrize(
    "command", [("hostname",), ("python",), ("python", "-c", "import torch"), ("python", "no.py")]
)
def test_what_is_no_script_of_ours_imports_nothing(command: tuple[str, ...]) -> None:
    assert heavy_imports(UserCommand(command)) == ()


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_imports, "find_spec", lambda name: None)


@pytest.mark.parametrize("start", [launch, dry_run])
@pytest.mark.parametrize("package", ["torch", "cerebras_torch"])
def test_a_job_that_needs_pytorch_is_refused_where_it_is_not_installed(
    start: Callable[..., object],
    package: str,
    tmp_path: Path,
    without_torch: None,
) -> None:
    script = tmp_path / "run_torch.py"
    script.write_text(f"import numpy\nfrom {package} import nn\n")
    request = JobRequest(("python-pt", str(script)))
    with pytest.raises(UsageError) as refused:
        start(request, load("local"))
    assert str(refused.value) == (
        f"{script}:2: imports {package}, and PyTorch is not installed: pip install 'torch==2.13.*'"
    )


@pytest.mark.parametrize(
    "text",
    [
        "def main():\n    import torch",
        "try:\n    import torch\nexcept ImportError:\n    torch = None",
        "import numpy",
    ],
)
def test_a_script_that_can_begin_without_pytorch_may(
    text: str, tmp_path: Path, without_torch: None
) -> None:
    (tmp_path / "run.py").write_text(text)
    script_imports.require_packages(UserCommand(("python", str(tmp_path / "run.py"))))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "import cerebras.framework.torch as cbtorch",
            "imports cerebras.framework, and PyTorch is",
        ),
        ("from csrun.keras import KerasModelToCerebrasEstimator", "imports csrun.keras, and Keras"),
        (
            "from cerebras.tf.cs_model_to_estimator import KerasModelToCerebrasEstimator",
            "imports cerebras.tf.cs_model_to_estimator, and Keras is not installed: pip",
        ),
        (
            "from modelzoo.common.pytorch.run_utils import run",
            "imports modelzoo.common.pytorch.run_utils, and PyTorch is not installed: pip",
        ),
        (
            "from modelzoo.fc_mnist.tf.model import model_fn",
            "imports modelzoo.fc_mnist.tf.model, and TensorFlow is not installed: pip",
        ),
    ],
)
def test_what_a_front_end_needs_is_looked_for_before_the_job(
    tmp_path: Path, without_torch: None, line: str, message: str
) -> None:
    (tmp_path / "run.py").write_text(f"import sys\n{line}\n")
    with pytest.raises(UsageError, match=r"run\.py:2: " + re.escape(message)):
        script_imports.require_packages(UserCommand(("python", str(tmp_path / "run.py"))))


def test_keras_needs_pytorch_before_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"keras": object()}
    monkeypatch.setattr(script_imports, "find_spec", found.get)
    (tmp_path / "run.py").write_text("from csrun.keras import KerasModelToCerebrasEstimator\n")
    message = (
        r"run\.py:1: imports csrun.keras, which needs Keras on PyTorch, and PyTorch is not inst"
    )
    with pytest.raises(UsageError, match=message + ".*pip install 'keras>=3.12,<4' 'torch==2.13"):
        script_imports.require_packages(UserCommand(("python", str(tmp_path / "run.py"))))


OTHERS = [
    (
        "from csrun.keras import E",
        "keras",
        "2.15.0",
        "needs Keras 3.12 or later, below 4, got 2.15.0",
    ),
    (
        "from csrun.keras import E",
        "keras",
        "3.9.1",
        "needs Keras 3.12 or later, below 4, got 3.9.1",
    ),
    ("import cerebras.tf.run_config", "tensorflow", "2.20.1", "needs TensorFlow 2.21, got 2.20.1"),
]


@pytest.mark.parametrize(("line", "package", "version", "message"), OTHERS)
def test_another_version_is_refused_before_the_job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    package: str,
    version: str,
    message: str,
) -> None:
    monkeypatch.setattr(script_imports, "_version", {package: version}.get)
    (tmp_path / "run.py").write_text(line)
    with pytest.raises(UsageError, match=re.escape(message) + ": pip install"):
        script_imports.require_packages(UserCommand(("python", str(tmp_path / "run.py"))))


@pytest.mark.parametrize(
    ("line", "version", "has_hint"),
    [
        ("import cerebras_torch", "2.14.0+cpu", True),
        ("from modelzoo.common.pytorch.run_utils import run", "2.12.1", True),
        ("import cerebras_torch", "2.13.1", False),
        ("import torch", "2.14.0", False),
        ("import cerebras.tf.run_config", "2.14.0", False),
    ],
)
def test_a_hint_names_a_pytorch_that_is_not_tested(
    line: str, version: str, has_hint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_imports, "_version", {"torch": version}.get)
    (tmp_path / "run.py").write_text(line)
    hint = script_imports.version_hint(UserCommand(("python", str(tmp_path / "run.py"))))
    assert (hint is not None and "pip install 'torch==2.13.*'" in hint) == has_hint


def test_a_torch_beside_the_script_is_the_users_own(tmp_path: Path, without_torch: None) -> None:
    (tmp_path / "run.py").write_text("import torch")
    (tmp_path / "torch.py").write_text("")
    script_imports.require_packages(UserCommand(("python", str(tmp_path / "run.py"))))


NATIVE = "from csrun.params import main_for, run\nrun(main_for(None, None))\n"


@pytest.mark.parametrize(
    ("interpreter", "text", "has_hint"),
    [
        ("python-pt", NATIVE, True),
        ("python-ws", NATIVE, False),
        ("python-pt", "import torch", False),
    ],
)
def test_a_native_script_under_the_interpreter_of_pytorch_gets_a_hint(
    interpreter: str, text: str, has_hint: bool, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(text)
    hint = script_imports.interpreter_hint(UserCommand((interpreter, str(script))))
    assert (hint is not None and "python-ws streams its weights" in hint) == has_hint


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("from csrun.params import run", True),
        ("from csrun import params", True),
        ("import beside", True),
        ("import csrun.params as p", True),
        ("import torch, cerebras_torch, numpy", False),
        ("from csrun.data import Dataset", False),
        ("from csrun.params import RunConfig\nfrom csrun import nn", False),
    ],
)
def test_scripts_that_may_use_params(text: str, may: bool, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def main():\n    from csrun.params import run")
    script = tmp_path / "run.py"
    script.write_text(text)
    assert script_imports.may_use_params(str(script)) is may
