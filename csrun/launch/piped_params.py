"""Params file that is a pipe, `--params <(...)`: the launcher reads it once and stores the text.

The tasks read the text from the job folder.
"""

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import msgspec

from csrun.base.errors import UsageError
from csrun.base.files import create_new
from csrun.context import JobFile
from csrun.jobs.request import JobRequest
from csrun.launch.user_command import UserCommand

FILE_NAME = "params.yaml"
WRITER_S = 2.0  # for a writer to open the pipe
_POLL_S = 0.02


def read_piped_params(request: JobRequest) -> JobRequest:
    """Return the request with the text of its params file, if that is a pipe.

    Raises: UsageError if the text could not be passed to the job, or if the pipe cannot be read
    """
    path = UserCommand(request.command).params
    if path is None or not _is_pipe(path):
        return request
    if request.sbatch or request.foreground is not None:
        refuse_pipe(UserCommand(request.command), "does not exist where the command runs")
    from csrun.base.plain_yaml import MAX_BYTES

    try:
        return replace(request, params=_text_of(path, MAX_BYTES))
    except OSError as error:
        raise UsageError(f"--params: {path}: cannot be read: {error.strerror}") from error


def refuse_pipe(command: UserCommand, reason: str) -> None:
    """Raises: UsageError for a command whose params file is a pipe"""
    if (path := command.params) is not None and _is_pipe(path):
        raise UsageError(f"--params: {path}: is a pipe, which {reason}: pass a regular file")


def _text_of(path: str, limit_bytes: int) -> bytes:
    """Read a pipe to its end, however long that takes.

    Raises: UsageError without a writer; OSError, also for more than `limit_bytes`
    """
    # O_NONBLOCK: otherwise opening a pipe without a writer would block without end.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        until_s = monotonic() + WRITER_S
        while (text := pipe.read(limit_bytes + 1)) == b"":  # None: the writer has not written yet
            if monotonic() > until_s:
                raise UsageError(
                    f"--params: {path}: is a pipe without a writer: pass a regular file"
                )
            sleep(_POLL_S)
        os.set_blocking(pipe.fileno(), True)
        text = text or b""
        while len(text) <= limit_bytes and (more := pipe.read(limit_bytes + 1)):
            text += more
    if len(text) > limit_bytes:
        raise OSError(errno.EFBIG, f"more than {limit_bytes:,} bytes")
    return text


def store_piped_params(request: JobRequest, job: JobFile, folder: Path) -> JobFile:
    """Write the text into the job folder; return the job whose command reads it there.

    Raises: OSError, for example on a full disk
    """
    if request.params is None:
        return job
    path = folder / FILE_NAME
    with open(create_new(path), "wb") as file:
        file.write(request.params)
    command = UserCommand(job.command).with_params(str(path))
    return msgspec.structs.replace(job, command=command.argv)


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):  # its reader reports a missing file
        return False
