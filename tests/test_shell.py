"""Runs tests/shell/*.sh: the commands, used as a person uses them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "shell").glob("*.sh"))
CHECKOUT = Path(__file__).parent.parent


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_shell(script: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CSRUN_STATE_DIR": str(tmp_path / "state"),
        "CHECKOUT": str(CHECKOUT),
    }
    environment.pop("CSRUN_SITE", None)
    done = subprocess.run(
        ["bash", "-eu", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
