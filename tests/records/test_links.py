"""Symbolic links planted in a model_dir: nothing is written to their targets."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.base.open_folder import open_folder
from csrun.records import events, model_dir, performance, trace_file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Another folder of the user, next to a model_dir."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("performance.json", "params_train.yaml", "notes", "steps_1_2.json"):
        (folder / name).write_text("precious")
    (tmp_path / "model_dir").mkdir()
    return folder


def write_performance(folder: Path) -> None:
    performance.write(folder, performance.Performance(0, 0, 0, 0, False, 0, 0))


def write_params(folder: Path) -> None:
    model_dir.write_params(folder, "train", {"seed": 1})


def write_trace(folder: Path) -> None:
    trace_file.write(trace_file.path_of(folder, 1, 2), ())


def write_events(folder: Path) -> None:
    events.EventWriter(folder, "eval").close()


WRITERS = {
    "performance": write_performance,
    "train": write_params,
    "trace": write_trace,
    "eval": write_events,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_link_in_the_place_of_a_folder_is_refused(project: Path, name: str) -> None:
    folder = project.parent / "model_dir"
    (folder / name).symlink_to(project)
    before = {path: path.read_bytes() for path in project.iterdir()}
    with pytest.raises(CsrunError, match=f"{name}: is not a folder; remove it"):
        WRITERS[name](folder)
    assert {path: path.read_bytes() for path in project.iterdir()} == before


@pytest.mark.parametrize("name", WRITERS)
def test_a_training_is_refused_before_it_begins(project: Path, name: str) -> None:
    folder = project.parent / "model_dir"
    (folder / name).symlink_to(project)
    with (
        pytest.raises(UsageError, match=f"{name}: is not a folder"),
        model_dir.locked(folder, "job 1"),
    ):
        pass


def test_a_folder_that_is_replaced_while_it_is_open_is_written_all_the_same(
    project: Path,
) -> None:
    folder = project.parent / "model_dir" / "performance"
    with open_folder(folder) as place:
        folder.rename(folder.with_name("moved"))
        folder.symlink_to(project)
        (place / "performance.json").write_text("new")
    assert (project / "performance.json").read_text() == "precious"
    assert (folder.with_name("moved") / "performance.json").read_text() == "new"


def test_errors_name_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, open_folder(tmp_path / "a") as place:
        (place / "missing").read_bytes()
    assert caught.value.filename == str(tmp_path / "a" / "missing")


def test_events_are_written_into_no_file_that_is_there(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "time", lambda: 1_700_000_000.0)
    folder = project.parent / "model_dir"
    with closing(events.EventWriter(folder)):
        (made,) = folder.iterdir()
    number = int(made.name.rpartition(".")[2])
    guessed = made.name.removesuffix(f".{number}")
    (folder / f"{guessed}.{number + 1}").symlink_to(project / "notes")
    with pytest.raises(CsrunError, match="File exists"):
        events.EventWriter(folder)
    assert (project / "notes").read_text() == "precious"


def test_only_its_owner_can_open_the_lock(project: Path) -> None:
    folder = project.parent / "model_dir"
    umask = os.umask(0)
    try:
        with model_dir.locked(folder, "job 1"):
            assert (folder / model_dir.LOCK_FILE).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)
