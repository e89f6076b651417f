"""Link compile_report.txt in the working directory: its target, and when it is absent."""

import os
from pathlib import Path

import pytest

from csrun.estimator.compilation import link_report

LINK = "compile_report.txt"


@pytest.fixture
def compiles(own_folder: Path) -> list[Path]:
    """Two compile directories in the working directory."""
    found = [Path("model_dir", name) for name in ("tfcs_1", "tfcs_2")]
    for folder in found:
        folder.mkdir(parents=True)
        (folder / LINK).write_text(folder.name)
    return found


def test_it_leads_to_the_newest_compile(own_folder, compiles):
    for folder in compiles:
        link_report(folder)
        assert Path(LINK).read_text() == folder.name
    assert sorted(os.listdir(own_folder)) == [LINK, "model_dir"]


def test_it_moves_with_its_folder_when_model_dir_was_given_from_there(own_folder, compiles):
    link_report(compiles[0])
    moved = own_folder.rename(own_folder.with_name("moved"))
    assert (moved / LINK).read_text() == "tfcs_1"


def test_an_absolute_model_dir_is_found_as_well(own_folder, compiles):
    link_report(compiles[1].absolute())
    assert Path(LINK).read_text() == "tfcs_2"


def test_a_link_that_leads_nowhere_is_replaced(compiles):
    Path(LINK).symlink_to("gone")
    link_report(compiles[0])
    assert Path(LINK).read_text() == "tfcs_1"


def test_a_users_file_or_folder_of_that_name_stays(own_folder, compiles):
    Path(LINK).write_text("my own")
    link_report(compiles[0])
    assert Path(LINK).read_text() == "my own"
    Path(LINK).unlink()
    Path(LINK).mkdir()
    link_report(compiles[0])
    assert Path(LINK).is_dir()
    assert not Path(LINK).is_symlink()
    assert sorted(os.listdir(own_folder)) == [LINK, "model_dir"]


def test_a_folder_that_takes_no_link_gets_none(own_folder, compiles, monkeypatch):
    folder = compiles[0].absolute()
    monkeypatch.chdir("/proc")  # takes no files, not even root's
    link_report(folder)
    assert not Path(LINK).exists()
    gone = own_folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    link_report(folder)
