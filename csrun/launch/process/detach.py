"""Detached launcher: a process that leaves the terminal once its job is registered."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from csrun.base.errors import shell_code
from csrun.jobs.folder import LAUNCHER_LOG
from csrun.jobs.registered_job import RegisteredJob


def detached(run: Callable[[Callable[[RegisteredJob], None]], int]) -> int:
    """Run a job in a process that outlives this one; return 0 as soon as the job is registered.

    run: gets a function to call with the registered job. An earlier failure is reported here, with
        the exit code that the run has without --detach.
    """
    sys.stdout.flush()  # otherwise both processes would write the buffered text
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        os.setsid()  # a new session: signals of the terminal and the shell do not reach it
        return run(partial(_leave_terminal, write_end))
    os.close(write_end)
    try:
        with open(read_end) as pipe:
            job_id = pipe.read()
    except BaseException:
        os.kill(pid, signal.SIGTERM)  # Ctrl-C does not reach that session
        raise
    if not job_id:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return shell_code(code)
    print(
        f"job {job_id} runs in the background: 'csctl logs {job_id} --follow' shows its output,"
        f" 'csctl cancel job {job_id}' ends it"
    )
    return 0


def _leave_terminal(write_end: int, job: RegisteredJob) -> None:
    """Redirect the launcher's output to a log next to those of the tasks."""
    log = job.folder.log(LAUNCHER_LOG)
    log.parent.mkdir(0o700, exist_ok=True)
    null = os.open(os.devnull, os.O_RDWR)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (null, 1), (said, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(said)
    # Last: when it closes, the process in the foreground returns to the shell.
    os.write(write_end, str(job.job_id).encode())
    os.close(write_end)
