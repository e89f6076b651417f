"""csrun's own files are recognized by their folder, with any other folder named `csrun`."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import csrun
from csrun.base import source_folder
from csrun.compiler import compile_directory
from csrun.data import input_operators
from csrun.pytorch import errors


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder `csrun`, first in csrun's path as it is next to the script."""
    folder = tmp_path / "csrun"
    folder.mkdir()
    monkeypatch.setattr(csrun, "__path__", [str(folder), *csrun.__path__])
    return folder


def test_it_is_the_folder_of_the_modules_that_are_imported(tmp_path: Path) -> None:
    (tmp_path / "csrun").mkdir()
    script = "import csrun.base.source_folder as s; print(s.SOURCE_FOLDER, s.__file__)"
    words = (sys.executable, "-c", script)  # -c has the working directory first in sys.path
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    found, file = map(Path, done.stdout.split())
    assert found / "base/source_folder.py" == file == Path(source_folder.__file__)


def test_files_of_csrun_and_of_a_clone_next_to_the_script(clone: Path) -> None:
    is_of_csrun = runpy.run_path(errors.__file__)["is_of_csrun"]
    assert is_of_csrun(errors.__file__)
    assert not is_of_csrun(f"{clone}/run.py")


def test_a_clone_is_no_source_of_the_compiler(clone: Path) -> None:
    real = Path(compile_directory.__file__).parents[1]
    assert compile_directory._sources.__wrapped__() == compile_directory.digest_of_sources(real)


def test_a_call_from_a_clone_is_the_users(clone: Path) -> None:
    call_site = runpy.run_path(input_operators.__file__)["call_site"]
    names = {"call_site": call_site}
    exec(compile("where = call_site()", f"{clone}/train.py", "exec"), names)
    assert names["where"] == "train.py:1"


def test_no_module_asks_for_the_path_of_the_package() -> None:
    files = source_folder.SOURCE_FOLDER.rglob("*.py")
    assert not [file for file in files if "csrun.__path__[" in file.read_text()]
