"""Record of an array and its elements: a small file in csrun's state folder."""

import os
import shutil
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import UsageError
from csrun.base.files import create_new, make_private
from csrun.context import account_state_dir
from csrun.context.job import now
from csrun.jobs.cancel import this_process
from csrun.jobs.record import Launcher
from csrun.jobs.registered_job import make_folders, refusal_of_unwritable_state
from csrun.launch.array.array_elements import ArrayElement
from csrun.launch.array.element_params import with_params_files
from csrun.site import Site

KEPT_ARRAYS = 200


class ArrayFile(msgspec.Struct, frozen=True):
    """An array of jobs; process `launcher` starts its elements, or has submitted them."""

    array_id: int
    working_dir: str
    launcher: Launcher
    submitted: datetime
    elements: tuple[ArrayElement, ...]


class StoredArray:
    """Record of the array of this process."""

    def __init__(self, site: Site, elements: tuple[ArrayElement, ...]) -> None:
        self._path = _create(site)
        with refusal_of_unwritable_state(site):
            elements = with_params_files(elements, _params_folder(self._path))
            number = int(self._path.stem)
            self.file = ArrayFile(number, os.getcwd(), this_process(), now(), elements)
            stored.write(self._path, self.file, durable=False)

    def end(self, index: int, exit_code: int) -> None:
        """Record the end of an element; on a full disk it is lost without an error."""
        elements = tuple(
            msgspec.structs.replace(each, exit_code=exit_code) if each.index == index else each
            for each in self.file.elements
        )
        self.file = msgspec.structs.replace(self.file, elements=elements)
        with suppress(OSError):
            stored.write(self._path, self.file, durable=False)


def read(site: Site, array_id: int) -> ArrayFile:
    """Read an array of this account.

    Raises: UsageError for an unknown number; CsrunError for a damaged file
    """
    path = _folder(site) / f"{array_id}.json"
    try:
        return stored.read(path, ArrayFile, "the array")
    except FileNotFoundError as error:
        known = ", ".join(map(str, ids_of(site)[-10:]))
        remedy = f"the newest are {known}" if known else "csrun_wse --array 1-3 CMD makes the first"
        raise UsageError(
            f"array {array_id}: no such array on site {site.name}; {remedy}"
        ) from error


def ids_of(site: Site) -> list[int]:
    """Return the numbers of this account's arrays, oldest first."""
    return _ids(_folder(site))


def _create(site: Site) -> Path:
    """Create the file with the next free number."""
    folder = _folder(site)
    with refusal_of_unwritable_state(site):
        make_folders(site)
        make_private(folder)
        known = _ids(folder)
        for old in known[: -KEPT_ARRAYS + 1]:
            path = folder / f"{old}.json"
            path.unlink(missing_ok=True)
            shutil.rmtree(_params_folder(path), ignore_errors=True)
        number = 1 + max(known, default=0)
        while True:
            path = folder / f"{number}.json"
            try:
                os.close(create_new(path))
                return path
            except FileExistsError:  # created by another launcher meanwhile
                number += 1


def _params_folder(path: Path) -> Path:
    """Folder of the elements' params files, next to the array's record."""
    return path.with_suffix("")


def _ids(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())


def _folder(site: Site) -> Path:
    return account_state_dir(site.name, site.shared) / "arrays"
