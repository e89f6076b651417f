"""The records of a site's jobs: one small file each, written whole by the job's launcher.

A job that lives holds its folder's lock, and its last word is in the record before it lets go: a
record of a living job whose lock is free is that of a LOST one. Who may write settles that, anyone
can tell it.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import SMALL_FILE_BYTES, make_private, open_regular, write_whole
from csrun.context import jobs_dir_of, site_state_dir
from csrun.context.job import LIVE_LOCK, now, read_uses
from csrun.context.link import UNREADABLE
from csrun.jobs.folder import job_ids
from csrun.jobs.record import JobRecord, RecordState, moved
from csrun.system import is_held, try_lock

KEPT_RECORDS = 1000
LOST_CAUSE = "its launcher was killed, or the machine went down"


def write(site_name: str, record: JobRecord, *, durable: bool = True) -> None:
    path = _path(site_name, record.job_id)
    make_private(path.parent)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    write_whole(path, text, durable=durable)


def read(site_name: str, job_id: int) -> JobRecord:
    """The record of one job, as things are now.

    Raises: UsageError when there is none; CsrunError for a damaged one
    """
    try:
        return _as_it_is(site_name, _stored(site_name, job_id))
    except FileNotFoundError as error:
        raise UsageError(
            f"job {job_id}: site {site_name} knows no such job; 'csctl get jobs --all' lists those "
            f"that it knows, the newest {KEPT_RECORDS}"
        ) from error


def read_all(site_name: str) -> list[JobRecord]:
    """All records, the newest job last; a damaged one is named on standard error."""
    found: list[JobRecord] = []
    for job_id in record_ids(site_name):
        try:
            found.append(_as_it_is(site_name, _stored(site_name, job_id)))
        except FileNotFoundError:
            continue  # removed just now, for a newer one
        except CsrunError as error:
            print(f"warning: {error}", file=sys.stderr)
    return found


def record_ids(site_name: str) -> list[int]:
    """The jobs that have a record, oldest first."""
    names = (path.stem for path in _folder(site_name).glob("*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def settle(site_name: str, job_id: int) -> None:
    """Let a dead job's record say LOST; the job's lock must be held, or its folder gone."""
    with suppress(FileNotFoundError, CsrunError):
        record = _stored(site_name, job_id)
        if record.is_active:
            write(site_name, _lost(site_name, record))


def prune(site_name: str) -> None:
    """Remove the oldest records beyond those that are kept, but none of a job that has a folder."""
    with_folder = set(job_ids(jobs_dir_of(site_name)))
    for job_id in record_ids(site_name)[:-KEPT_RECORDS]:
        if job_id not in with_folder:
            _path(site_name, job_id).unlink(missing_ok=True)


def _as_it_is(site_name: str, record: JobRecord) -> JobRecord:
    if not record.is_active:
        return record
    folder = jobs_dir_of(site_name) / str(record.job_id)
    if is_held(folder / LIVE_LOCK):
        return msgspec.structs.replace(record, systems=read_uses(folder))
    record = _stored(site_name, record.job_id)  # it may have ended just now
    if not record.is_active:
        return record
    try:
        _settle_locked(site_name, record.job_id)
        record = _stored(site_name, record.job_id)
    except OSError:  # another user's, or a full disk: it is LOST all the same
        return _lost(site_name, record)
    return _lost(site_name, record) if record.is_active else record


def _settle_locked(site_name: str, job_id: int) -> None:
    folder = jobs_dir_of(site_name) / str(job_id)
    if not folder.exists():
        settle(site_name, job_id)
    elif dead := try_lock(folder / LIVE_LOCK, ""):
        with dead:
            settle(site_name, job_id)


def _lost(site_name: str, record: JobRecord) -> JobRecord:
    uses = read_uses(jobs_dir_of(site_name) / str(record.job_id))
    return moved(record, RecordState.LOST, ended=now(), cause=LOST_CAUSE, systems=uses)


def _stored(site_name: str, job_id: int) -> JobRecord:
    """A record as it lies there; whose it is, its file says: what is written in it proves nothing.

    Raises: FileNotFoundError; CsrunError for one that cannot be read
    """
    path = _path(site_name, job_id)
    try:
        with open(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            record = msgspec.json.decode(file.read(SMALL_FILE_BYTES), type=JobRecord)
            return msgspec.structs.replace(record, uid=os.fstat(file.fileno()).st_uid)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CsrunError(f"{path}: the record cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise CsrunError(f"{path}: the record is damaged: {error}; remove the file") from error


def _folder(site_name: str) -> Path:
    return site_state_dir(site_name) / "records"


def _path(site_name: str, job_id: int) -> Path:
    return _folder(site_name) / f"{job_id}.json"
