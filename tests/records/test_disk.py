"""Records on a full disk: one error line with the path of the file."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from csrun.base.errors import CsrunError
from csrun.base.files import writing
from csrun.records import events, model_dir


def test_an_os_error_becomes_one_line(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    message = "here: cannot be written: No space left on device"
    with pytest.raises(CsrunError, match=message), writing(tmp_path / "here"):
        raise full


def test_events_and_params_name_what_they_cannot_write(tmp_path):
    (tmp_path / "train").write_text("a file where a folder belongs")
    with pytest.raises(CsrunError, match=r"/train: is not a folder; remove it"):
        model_dir.write_params(tmp_path, "train", {"seed": 1})
    with pytest.raises(CsrunError, match=r"train.*cannot be written: File exists"):
        events.EventWriter(tmp_path / "train")


@contextmanager
def no_room() -> Iterator[None]:
    """Limit file sizes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_lock_is_held_where_its_holder_cannot_be_written(tmp_path: Path) -> None:
    with no_room(), model_dir.locked(tmp_path, "job 8"):
        assert (tmp_path / model_dir.LOCK_FILE).stat().st_size == 0


def test_events_without_room_name_the_folder_and_are_closed_in_peace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), closing(events.EventWriter(tmp_path)) as writer:
        with no_room(), pytest.raises(CsrunError, match="cannot be written: File too large"):
            writer.scalars({"loss": 1.0}, 1)
        raise ZeroDivisionError  # what was told of first stays the cause
