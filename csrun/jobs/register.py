"""Records of a site's jobs: one small file each, written atomically by the job's launcher.

A living job holds its folder's lock, and its record is final before the lock is released. A record
of a living job whose lock is free therefore means that the job is LOST. Any account can see that;
an account that may write records it.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import account_name, make_private
from csrun.base.safe_text import printable
from csrun.context import account_state_dir
from csrun.context.job import LIVE_LOCK, now, read_leases
from csrun.jobs import job_labels
from csrun.jobs.folder import (
    job_ids,
    jobs_dir,
    published_job_dir,
    published_jobs_dir,
    telemetry_dir,
)
from csrun.jobs.record import JobRecord, RecordState, moved
from csrun.site import Site
from csrun.system import is_held, try_lock

Records = dict[int, JobRecord]
Source = TypeVar("Source", Path, JobRecord)
KEPT_RECORDS = 1000
RECORD_FILE = "record.json"  # on the board
# Records by path and version: each write creates a new file. A display reads all of them every
# second.
_known: dict[Path, tuple[tuple[int, int, int], JobRecord]] = {}
_listings: dict[Path, tuple[tuple[int, int, int], Records]] = {}  # by folder and version
_CLOCK_NS = 10**9  # two changes of a folder that are closer may have equal times
LOST_CAUSE = "its launcher was killed, or the machine went down"


def write(site: Site, record: JobRecord, *, durable: bool = True) -> None:
    """Write this account's record of a job, and its public part to the board."""
    path = _folder(site) / f"{record.job_id}.json"
    make_private(path.parent)
    stored.write(path, record, durable=durable)
    if site.shared:
        show(site, record, durable=durable)


def show(site: Site, record: JobRecord, *, durable: bool = False) -> None:
    """Write the public part of a job's record to the board of a shared site, if the job has an
    entry.
    """
    shown = published_job_dir(site, record.job_id) / RECORD_FILE
    stored.write(shown, _public_record(record), durable=durable, mode=0o640)


def _public_record(record: JobRecord) -> JobRecord:
    """Public part of a record: without command line, folders and logs."""
    changes = {"command": (), "working_dir": "", "output": None, "logs": None}
    return msgspec.structs.replace(record, **changes)


def read(site: Site, job_id: int) -> JobRecord:
    """Return the current record of one job.

    Raises: UsageError for an unknown job; CsrunError for a damaged record
    """
    try:
        return _as_it_is(site, _stored(site, job_id))
    except FileNotFoundError as error:
        raise UsageError(
            f"job {job_id}: no such job on site {site.name}; 'csctl get jobs --all' lists the"
            f" newest {KEPT_RECORDS}"
        ) from error


def read_all(site: Site) -> list[JobRecord]:
    """Return all records, newest job last; a damaged one is reported on standard error."""
    own = _own_records(site)
    others = {job: path for job, path in _paths_of_others(site).items() if job not in own}
    stored = _readable(others, _read) | own
    return [*_readable(dict(sorted(stored.items())), lambda each: _as_it_is(site, each)).values()]


def _readable(found: Mapping[int, Source], read: Callable[[Source], JobRecord]) -> Records:
    """Return records by number; one that was removed or replaced meanwhile is omitted."""
    records = {}
    for job_id, source in found.items():
        try:
            records[job_id] = read(source)
        except FileNotFoundError:
            continue
        except CsrunError as error:
            print(f"warning: {printable(str(error))}", file=sys.stderr)
    return records


def _own_records(site: Site) -> Records:
    """Return this account's stored records.

    The folder is not read again while its modification time is unchanged: each write of a record or
    of labels renames a file in it.
    """
    folder = _folder(site)
    try:
        status = folder.stat()
    except OSError:
        return {}
    version = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    known = _listings.get(folder)
    if known is not None and known[0] == version:
        return known[1]
    paths = {_number_of(path): path for path in _own_paths(site)}
    found = _readable(paths, _read)
    is_settled = time.time_ns() - status.st_mtime_ns > _CLOCK_NS
    if is_settled and len(found) == len(paths):
        _listings[folder] = version, found
    return found


def record_ids(site: Site) -> list[int]:
    """Return this account's jobs that have a record, oldest first."""
    return sorted(map(_number_of, _own_paths(site)))


def _own_paths(site: Site) -> list[Path]:
    return [path for path in _folder(site).glob("*.json") if path.stem.isdecimal()]


def _paths_of_others(site: Site) -> dict[int, Path]:
    """Return the records that other accounts of a shared site have published, by job number.

    If two accounts claim one number, the account that first held the job's lock has it.
    """
    if not site.shared:
        return {}
    own = str(os.getuid())
    folders = [
        folder
        for folder in published_jobs_dir(site).glob("*/*")
        if folder.name.isdecimal() and folder.parent.name != own and os.path.isdir(folder)
    ]
    return {int(folder.name): folder / RECORD_FILE for folder in sorted(folders, key=_newest_first)}


def _newest_first(folder: Path) -> int:
    """Sort by change time of the job's lock, which no account can set."""
    try:
        return -(folder / LIVE_LOCK).lstat().st_ctime_ns
    except OSError:
        return -sys.maxsize


def _number_of(path: Path) -> int:
    return int(path.parent.name if path.name == RECORD_FILE else path.stem)


def settle(site: Site, job_id: int) -> None:
    """Mark a dead job's record as LOST; call with the job's lock held, or its folder gone."""
    with suppress(FileNotFoundError, CsrunError):
        record = _stored(site, job_id)
        if record.is_active:
            write(site, _lost(site, record))


def prune(site: Site) -> None:
    """Delete the oldest records beyond the retention, but none of a job that has a folder."""
    with_folder = set(job_ids(jobs_dir(site)))
    for job_id in record_ids(site)[:-KEPT_RECORDS]:
        if job_id not in with_folder:
            remove(site, job_id)


def remove(site: Site, job_id: int) -> None:
    """Delete a job of this account, as far as its files can be deleted."""
    for suffix in (".json", job_labels.SUFFIX):
        with suppress(OSError):
            (_folder(site) / f"{job_id}{suffix}").unlink(missing_ok=True)
    if site.shared:
        shutil.rmtree(published_job_dir(site, job_id), ignore_errors=True)


def label(site: Site, job_id: int, changes: Iterable[str]) -> job_labels.Labels:
    """Change the labels of this account's job; return all of its labels.

    Raises: UsageError for an unknown job or another account's, and as `job_labels.changed`
    """
    record = read(site, job_id)
    if record.uid != os.getuid():
        raise UsageError(f"job {job_id} is {record.user}'s: only its owner can label it")
    found = job_labels.changed(record.labels, changes)
    job_labels.store(_folder(site) / f"{job_id}.json", found)
    return found


def _with_labels(record: JobRecord, path: Path) -> JobRecord:
    later = job_labels.stored_labels(path)
    return record if later is None else msgspec.structs.replace(record, labels=later)


def _as_it_is(site: Site, record: JobRecord) -> JobRecord:
    if not record.is_active:
        return record
    folder = telemetry_dir(site, record.job_id, record.uid)
    if is_held(folder / LIVE_LOCK):
        return msgspec.structs.replace(record, systems=read_leases(folder))
    record = _stored(site, record.job_id)  # it may have ended meanwhile
    if not record.is_active:
        return record
    if record.uid != os.getuid():
        return _lost(site, record)
    try:
        _settle_locked(site, record.job_id)
        record = _stored(site, record.job_id)
    except OSError:  # full disk: the job is LOST anyway
        return _lost(site, record)
    return _lost(site, record) if record.is_active else record


def _settle_locked(site: Site, job_id: int) -> None:
    folder = jobs_dir(site) / str(job_id)
    if not folder.exists():
        settle(site, job_id)
    elif dead := try_lock(folder / LIVE_LOCK, ""):
        with dead:
            settle(site, job_id)


def _lost(site: Site, record: JobRecord) -> JobRecord:
    uses = read_leases(telemetry_dir(site, record.job_id, record.uid))
    return moved(record, RecordState.LOST, ended=now(), cause=LOST_CAUSE, systems=uses)


def _stored(site: Site, job_id: int) -> JobRecord:
    """Return this account's stored record of a job, else another account's."""
    try:
        return _read(_folder(site) / f"{job_id}.json")
    except FileNotFoundError:
        if (path := _paths_of_others(site).get(job_id)) is not None:
            return _read(path)
        raise


def _read(path: Path) -> JobRecord:
    """Return a record with the owner of its file; the content does not prove its owner.

    Raises: FileNotFoundError; CsrunError for a record that cannot be read
    """
    try:
        status = path.lstat()
    except PermissionError:  # of a folder; the reader reports it
        return _read_again(path)
    version = status.st_ino, status.st_mtime_ns, status.st_size
    known = _known.get(path)
    if known is None or known[0] != version:
        known = _known[path] = version, _read_again(path)
    return _with_labels(known[1], path)


def _read_again(path: Path) -> JobRecord:
    found = stored.read_owned(path, JobRecord, "the record")
    if found.value.job_id != _number_of(path):
        said = f"{path}: record belongs to job {found.value.job_id}; remove the file"
        raise stored.DamagedError(said)
    if found.uid == os.getuid():
        return msgspec.structs.replace(found.value, uid=found.uid)
    return msgspec.structs.replace(found.value, uid=found.uid, user=account_name(found.uid))


def _folder(site: Site) -> Path:
    return account_state_dir(site.name, site.shared) / "records"
