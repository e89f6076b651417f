"""csrun dashboard: refused arguments."""

from pathlib import Path

import pytest

from csrun.cli import frame
from csrun.cli.csrun import csrun


def test_an_export_into_a_missing_folder(
    tmp_path: Path, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "run.html"
    assert frame.run(csrun, ["dashboard", str(tmp_path), "--export", str(path)]) == 2
    assert f"error: {path}: no such folder {path.parent}\n" in capsys.readouterr().err


def test_an_export_of_a_folder_without_trainings(
    tmp_path: Path, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.html"
    assert frame.run(csrun, ["dashboard", str(tmp_path), "--export", str(path)]) == 2
    assert f"error: {tmp_path}: no model_dirs below it; name a folder" in capsys.readouterr().err
    assert not path.exists()
