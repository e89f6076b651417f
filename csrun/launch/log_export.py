"""Archive of a job's files for a bug report, without secrets, data or weights."""

import io
import os
import platform
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import open_regular, read_start
from csrun.base.version import installed_versions
from csrun.context import JobFile
from csrun.context.job import JOB_FILE, TELEMETRY_FILE, USES_FILE
from csrun.context.launcher_link import REPORT_DIR
from csrun.jobs.folder import JobFolder
from csrun.launch.backend import JobStatus
from csrun.launch.process.task_output import log_name
from csrun.records.log_lines import model_dir_in

# bytes from the end of each file: the cause of a failure is in the last lines
MOST_LOG_BYTES = 64 << 20
_HEAD_BYTES = 1 << 20  # bytes from the start of the chief's log, which names the compile
_COMPILE = re.compile(
    r"^INFO:csrun:(?:Compiled in .*?|Cached compilation found for this model configuration): (.+)$",
    re.MULTILINE,
)
_COMPILE_FILES = ("compile_report.txt", "compile.log", "plan.json", "kernels.txt",
                  "input_fn_report.txt", "manifest.json")  # fmt: skip
_RUN_FILES = ("train/params_train.yaml", "eval/params_eval.yaml", "predict/params_predict.yaml",
              "performance/performance.json")  # fmt: skip
_JOB_FILES = (JOB_FILE, TELEMETRY_FILE, USES_FILE)


def export(job: JobStatus, folder: Path, target: Path) -> int:
    """Write an archive of a job's files, its record and the versions; return the number of files.

    Raises: UsageError if the job has no files here, or the archive exists; CsrunError if it cannot
    be written
    """
    found = list(_files(folder))
    if not found:
        raise UsageError(
            f"job {job.job_id} has no files in {folder}: removed, or owned by another account"
        )
    top = f"job_{job.job_id}"
    try:
        with tarfile.open(target, "x:gz") as archive:
            _add(archive, f"{top}/record.json", _pretty(job))
            _add(archive, f"{top}/versions.json", _pretty(_versions()))
            for name, path in found:
                _add(archive, f"{top}/{name}", _end_of(path))
    except FileExistsError as error:
        raise UsageError(f"{target}: already exists: choose another --output") from error
    except OSError as error:
        raise CsrunError(f"{target}: cannot be written: {error.strerror}") from error
    return len(found) + 2


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the files by their names in the archive."""
    for pattern in (*_JOB_FILES, "logs/*.log", f"{REPORT_DIR}/*"):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                yield str(path.relative_to(folder)), path
    try:
        working_dir = Path(JobFile.read(folder).working_dir)
    except (CsrunError, OSError):
        return
    log = read_start(JobFolder(folder).log(log_name(0)), _HEAD_BYTES)
    for name in _COMPILE_FILES if (compiled := _COMPILE.search(log)) else ():
        if compiled and (path := working_dir / compiled[1] / name).is_file():
            yield f"compile/{name}", path
    for name in _RUN_FILES if (model_dir := model_dir_in(log)) else ():
        if model_dir and (path := working_dir / model_dir / name).is_file():
            yield f"run/{Path(name).name}", path


def _end_of(path: Path) -> bytes:
    with open(open_regular(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_LOG_BYTES))
        return file.read(MOST_LOG_BYTES)


def _versions() -> dict[str, str]:
    system = {"python": platform.python_version(), "system": platform.platform()}
    return system | installed_versions()


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value))


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, time.time()
    archive.addfile(member, io.BytesIO(data))
