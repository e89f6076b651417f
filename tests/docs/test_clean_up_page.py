"""docs/clean-up.md removes all files of csrun in the home directory."""

import subprocess
from pathlib import Path

import pytest
from support.fc_mnist import FcMnist
from support.pages import CHECKOUT, blocks

PAGE = CHECKOUT / "docs" / "clean-up.md"
MOVED_BY = ("CSRUN_STATE_DIR", "CSRUN_CACHE_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "CSRUN_SITE")


def files_of(folder: Path) -> set[str]:
    """Files in a folder by relative path, without directories."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_nothing_is_left_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in MOVED_BY:
        monkeypatch.delenv(name, raising=False)
    place = FcMnist(work, variables=(("CSRUN_STATE_DIR", ""),))
    place.configure(runconfig__max_steps=5)
    done = place.wse("--mode", "train")
    assert done.returncode == 0, done.stderr
    (compiled,) = place.model_dir.glob("tfcs_*")
    compiled.chmod(0o777)  # others may write it: an own one is kept in the home
    assert place.wse("--mode", "train", "--steps", "1").returncode == 0
    kept = {path.split("/csrun/")[0] for path in files_of(home)}
    assert kept == {".local/state", ".cache"}
    (shown,) = (block for block in blocks(PAGE.read_text()) if "rm -rf" in block)
    (remove,) = (line[2:] for line in shown.splitlines() if line.startswith("$ rm"))
    subprocess.run(remove, shell=True, check=True)
    assert not files_of(home)
