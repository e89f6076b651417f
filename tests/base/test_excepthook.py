"""User errors of scripts that plain Python runs, in each front end."""

import subprocess
import sys
from pathlib import Path

import pytest

from csrun.base.errors import UsageError
from csrun.base.excepthook import install_excepthook

SCRIPTS = {
    "estimator": (
        "from csrun.estimator import CerebrasEstimator as Estimator\n"
        "Estimator(print, 'model_dir').train(print, steps=1, max_steps=1)",
        "train: give steps or max_steps",
    ),
    "keras": (
        "from csrun.keras import KerasModelToCerebrasEstimator as Estimator\nEstimator()",
        "give one of model_fn, model and keras_model",
    ),
    "tensorflow": (
        "from csrun.tensorflow import CSRunConfig\nCSRunConfig(step=3)",
        "CSRunConfig has no option step",
    ),
}


@pytest.mark.parametrize("front_end", SCRIPTS)
def test_a_mistake_is_one_line_and_exit_code_two(tmp_path: Path, front_end: str) -> None:
    script, named = SCRIPTS[front_end]
    (tmp_path / "run.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert named in line


def test_an_interactive_interpreter_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    install_excepthook()
    error = UsageError("log_steps: must be a whole number >= 1, got 0")
    with pytest.raises(SystemExit, match="2"):
        sys.excepthook(UsageError, error, None)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    sys.excepthook(UsageError, error, None)
    assert capsys.readouterr().err == f"error: {error}\n" * 2


def test_a_bug_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    install_excepthook()
    try:
        raise KeyError("rank")
    except KeyError as error:
        sys.excepthook(KeyError, error, error.__traceback__)
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("KeyError: 'rank'\n")
