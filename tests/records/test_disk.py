"""Records on a disk that is full: one line with the path, whichever file it was."""

import errno
import os

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
    with pytest.raises(CsrunError, match=r"train.*cannot be written"):
        model_dir.write_params(tmp_path, "train", {"seed": 1})
    with pytest.raises(CsrunError, match=r"train.*cannot be written: Not a directory"):
        events.EventWriter(tmp_path / "train" / "events")
