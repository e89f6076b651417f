"""PyTorch is an extra: csrun works without it, and cerebras_torch names what to install."""

import configparser
import logging
import subprocess
import sys

import pytest
from support.pages import CHECKOUT

from csrun.pytorch import torch_version

WITHOUT_TORCH = """
import importlib.machinery, sys

class Hidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else super().find_spec(name, path, target)

finder = next(f for f in sys.meta_path if f is importlib.machinery.PathFinder)
sys.meta_path[sys.meta_path.index(finder)] = Hidden
"""
PUBLIC = "import csrun.estimator, csrun.nn, csrun.data, csrun.params, csrun.cli.csrun_wse"


def run_python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_csrun_works_without_pytorch() -> None:
    done = run_python(f"{WITHOUT_TORCH}\n{PUBLIC}\nassert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_cerebras_torch_without_pytorch_says_what_to_install() -> None:
    done = run_python(f"{WITHOUT_TORCH}\nimport cerebras_torch")
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    wanted = setup["options.extras_require"]["torch"].strip()
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: cerebras_torch needs PyTorch, which is not installed: "
        f"pip install '{wanted}'"
    )
    assert wanted == f"torch=={torch_version.TESTED}.*"


@pytest.mark.parametrize(
    ("found", "is_tested"),
    [("2.13.0", True), ("2.13.1+cpu", True), ("2.12.0", False), ("2.1.3", False)],
)
def test_versions_of_the_tested_release_are_told_apart(found: str, is_tested: bool) -> None:
    assert torch_version.is_tested(found) == is_tested


def test_an_untested_version_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_version, "version", lambda name: "2.19.0")
    torch_version.warn_of_untested.cache_clear()
    with caplog.at_level(logging.WARNING, "csrun"):
        torch_version.warn_of_untested()
        torch_version.warn_of_untested()
    torch_version.warn_of_untested.cache_clear()
    (record,) = caplog.records
    assert "tested with PyTorch 2.13, this is 2.19.0" in record.getMessage()
