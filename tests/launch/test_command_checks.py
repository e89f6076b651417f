"""Checks of a command before anything runs."""

import sys
from pathlib import Path

import pytest

from csrun.base.errors import UsageError
from csrun.launch.command_checks import check_program


def test_a_missing_command_of_csrun_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(UsageError, match=f"^python-ws: command not found in {tmp_path}/bin; csrun"):
        check_program("python-ws", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "csctl").touch(mode=0o700)
    with pytest.raises(UsageError, match=f"^csctl: command not found: add {tmp_path}/bin to PATH"):
        check_program("csctl", str(tmp_path))
    check_program("csctl", str(tmp_path / "bin"))
