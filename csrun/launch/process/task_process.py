"""Forked process that becomes a task, from the fork to its exit code."""

import atexit
import importlib
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from threadpoolctl import ThreadpoolController

from csrun.base.errors import CsrunError
from csrun.base.python_options import split_options
from csrun.base.safe_text import printable
from csrun.context import JobFile, TaskReport, TaskReportKind, Terminated, environment
from csrun.context.launcher_link import report_of
from csrun.context.script_end import check_script_end
from csrun.jobs.folder import JobFolder
from csrun.launch.process.process_tree import die_with_parent, set_name
from csrun.launch.process.protocol import StartTask
from csrun.launch.process.start_barrier import StartBarrier
from csrun.launch.process.task_environment import task_variables
from csrun.launch.script_imports import HEAVY
from csrun.launch.user_command import UserCommand

EXIT_NOT_FOUND = 127  # as in a shell
EXIT_NOT_EXECUTABLE = 126
EXIT_TERMINATED = 128 + signal.SIGTERM
_OUR_FILES = frozenset({__file__, runpy.__file__, "<frozen runpy>"})


def become_task(
    start: StartTask,
    job: JobFile,
    folder: JobFolder,
    server_pid: int,
    start_barrier: StartBarrier | None = None,
) -> NoReturn:
    """Turn this process, just forked from the server, into the task; exits with its exit code.

    A planned task passes the gate of its job first, if there is one; a wafer starts later.
    """
    code = 1
    try:
        die_with_parent(server_pid)
        _detach(start, job, folder)
        if start_barrier is not None and start.wafer is None:
            start_barrier.enter()
        elif start_barrier is not None:
            start_barrier.leave()
        code = _run(start, folder)
    except Exception:
        traceback.print_exc()  # a bug of csrun: exceptions of user code have been reported
    finally:
        _flush()
        os._exit(code)


@cache
def blas() -> ThreadpoolController:
    """BLAS of this process; the server looks it up once for all tasks."""
    return ThreadpoolController()


def _detach(start: StartTask, job: JobFile, folder: JobFolder) -> None:
    entry = job.tasks[start.rank]
    os.sched_setaffinity(0, entry.cpus)
    set_name(f"{entry.role}-{entry.rank}" if start.wafer is None else start.name)
    _redirect(folder.log(start.name))
    variables = task_variables(job, folder.path, entry)
    if start.wafer is not None:
        variables[environment.WAFER] = start.wafer
    environment.adopt(variables)
    _reseed()
    if len(entry.cpus) > 1:  # the server sets BLAS to one thread
        blas().limit(limits=len(entry.cpus))


def _reseed() -> None:
    """Seed NumPy's global generator again; the server's state would be the same for all tasks."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


def _redirect(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    _make_lines_appear()


def _make_lines_appear() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def runs_in_process(argv: tuple[str, ...]) -> bool:
    """True if the forked process itself runs the command: a script or module under our Python."""
    if UserCommand(argv).mode is None or len(argv) < 2:
        return False
    return len(argv) > 2 if argv[1] == "-m" else not argv[1].startswith("-")


def _run(start: StartTask, folder: JobFolder) -> int:
    """Run a script or module under our Python in this process; replace it by any other program."""
    interpreter, *arguments = start.argv
    if start.wafer is not None and any(name in sys.modules for name in HEAVY):
        return _replace_process(sys.executable, ("python", *fresh_argv(start, folder)))
    ours = UserCommand(start.argv).mode is not None
    options, command = split_options(tuple(arguments)) if ours else ((), ())
    if options and runs_in_process((interpreter, *command)):
        plain = StartTask(start.rank, (interpreter, *command), start.wafer)
        return _replace_process(sys.executable, ("python", *options, *fresh_argv(plain, folder)))
    if not runs_in_process(start.argv):
        return _replace_process(sys.executable if ours else interpreter, start.argv)
    if arguments[0] == "-m":
        return _run_python(lambda: _run_module(arguments[1:]), start, folder)
    return _run_python(lambda: _run_script(arguments), start, folder)


def fresh_argv(start: StartTask, folder: JobFolder) -> tuple[str, ...]:
    """Return options of a new Python process that continues as this task in `main`.

    Used for a wafer, which then only has the memory in its plan and never torch, and for a Python
    with options.
    """
    return "-P", "-m", __name__, str(folder.path), str(start.rank), start.wafer or "", *start.argv


def main(argv: list[str]) -> NoReturn:
    """Continue as a task that was forked and replaced its program; see `fresh_argv`."""
    job_dir, rank, wafer, *command = argv
    folder, code = JobFolder(Path(job_dir)), 1
    try:
        start = StartTask(int(rank), tuple(command), wafer or None)
        set_name(start.name)
        _make_lines_appear()
        if (cpus := len(os.sched_getaffinity(0))) > 1:
            importlib.import_module("numpy")  # of this new process
            blas().limit(limits=cpus)
        code = _run(start, folder)
    except Exception:
        traceback.print_exc()  # a bug of csrun: exceptions of user code have been reported
    finally:
        _flush()
        os._exit(code)


def _run_script(arguments: list[str]) -> None:
    sys.argv[:] = arguments
    # as `python SCRIPT` sets it
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


def _run_module(arguments: list[str]) -> None:
    sys.argv[:] = arguments
    # as `python -m MODULE` sets it
    sys.path.insert(0, os.getcwd())
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _replace_process(program: str, argv: tuple[str, ...]) -> NoReturn:
    # Python ignores these two; another program expects their defaults.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvpe(program, [program, *argv[1:]], environment.inherited())
    except FileNotFoundError:
        print(f"{program}: command not found", file=sys.stderr)
        code = EXIT_NOT_FOUND
    except OSError as error:
        print(f"{program}: cannot be run: {error.strerror}", file=sys.stderr)
        code = EXIT_NOT_EXECUTABLE
    _flush()
    os._exit(code)


def _run_python(body: Callable[[], None], start: StartTask, folder: JobFolder) -> int:
    signal.signal(signal.SIGTERM, _raise_terminated)
    # The fork reset it to the system's default; a script expects KeyboardInterrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _run_to_end(body)
        code = 0
    except Terminated:
        code = EXIT_TERMINATED
    except BaseException as error:
        code = _report(error, start, folder)
    if code == 0:
        # The interpreter's regular exit, which os._exit skips: threads, then exit handlers.
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code


def _run_to_end(body: Callable[[], None]) -> None:
    try:
        body()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    check_script_end()


def _raise_terminated(signum: int, frame: FrameType | None) -> None:
    # First, because killpg signals this process, too.
    signal.signal(signum, signal.SIG_IGN)
    if os.getpgrp() == os.getpid():  # not in a process that the task has forked
        os.killpg(0, signum)  # to its children; only now, see `forking.send_signal`
    raise Terminated


def _report(error: BaseException, start: StartTask, folder: JobFolder) -> int:
    """Write the report, then the error to the log, so that a reader never sees the error twice."""
    if isinstance(error, SystemExit) and isinstance(error.code, str):
        print(error.code, file=sys.stderr)
    if not isinstance(error, SystemExit):
        sys.last_value = error  # as in Python's regular exit, for exit handlers
    text = _user_traceback(error)
    _flush()
    report = report_of(start.rank, error, text, os.fstat(1).st_size)
    if report.exit_code == 0:
        return 0
    with suppress(OSError):  # full disk: the log, the exit code and the data in memory remain
        report.write(folder.path, start.report_name)
    _write_to_log(report, error)
    return report.exit_code


def _write_to_log(report: TaskReport, error: BaseException) -> None:
    if report.kind is TaskReportKind.EXIT:
        return
    text = (
        f"error: {printable(report.message)}\n"
        if isinstance(error, CsrunError)
        else report.traceback
    )
    with suppress(OSError, ValueError):
        sys.stderr.write(text)


def _user_traceback(error: BaseException) -> str:
    """Return the traceback without the frames of the launcher that precede the user's code."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _OUR_FILES:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
