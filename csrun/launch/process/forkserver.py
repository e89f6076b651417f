"""Fork server: a single-threaded process that forks, reaps and ends a job's tasks.

The launcher starts it as `python -P -m csrun.launch.process.forkserver CONTROL_FD JOB_DIR MODULES
[LOCK_FD...]`. It imports MODULES (names separated by commas) first, so that a task starts in the
time of a fork and shares their memory. When the launcher's socket closes, or on SIGTERM, it kills
all of its descendants and exits.
"""

import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from time import monotonic

import msgspec

from csrun.base.errors import CsrunError
from csrun.context import JobFile
from csrun.context.launcher_link import LINK_SOCKET
from csrun.jobs.folder import JobFolder
from csrun.launch.process.forking import NodeTasks
from csrun.launch.process.preload import ALWAYS, preload
from csrun.launch.process.process_tree import (
    become_subreaper,
    die_with_parent,
    kill_descendants,
    outlive_parent,
    set_name,
)
from csrun.launch.process.protocol import MessageSocket, StartTask, TaskEnded, TasksReady, ToServer
from csrun.launch.process.usage_log import UsageWriter
from csrun.system import FileLock

_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class ForkServer:
    """The server's loop, between the launcher and the tasks."""

    def __init__(self, control: MessageSocket, folder: JobFolder) -> None:
        self._control = control
        self._job = JobFile.read(folder.path)
        self._tasks = NodeTasks(folder, LINK_SOCKET, len(self._job.tasks), _HANDLED)
        self._usage = UsageWriter(folder, node_id=0)
        self._selector = selectors.DefaultSelector()
        self._from_launcher = msgspec.msgpack.Decoder(ToServer)

    def serve(self) -> int | None:
        """Serve until the launcher has ended (None) or a signal arrives (its number)."""
        tasks = self._tasks
        for source in (self._control, tasks.link, tasks.start_barrier, tasks.signals):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(self._usage.wait_s):
                if key.fileobj is tasks.link:
                    self._forward()
                elif key.fileobj is tasks.start_barrier:
                    self._report_arrivals()
                elif key.fileobj is self._control:
                    if not self._handle():
                        return None
                elif signum := self._ending_signal():
                    return signum
                else:
                    self._reap()
            self._usage.sample_if_due(tasks.names)

    def _handle(self) -> bool:
        bodies = self._control.receive()
        for body in bodies or ():
            message = self._from_launcher.decode(body)
            if isinstance(message, StartTask):
                self._tasks.start(message, self._job, (self._control, self._selector))
            else:
                self._tasks.send_signal(message)
        return bodies is not None

    def _forward(self) -> None:
        if (message := self._tasks.receive(self._job)) is not None:
            self._control.send(message)

    def _report_arrivals(self) -> None:
        if self._tasks.start_barrier.count_arrivals():
            self._control.send(TasksReady(len(self._job.tasks), monotonic()))

    def _ending_signal(self) -> int | None:
        return next((n for n in self._tasks.received() if n != signal.SIGCHLD), None)

    def _reap(self) -> None:
        now = monotonic()
        for task, exit_code in self._tasks.reap():
            self._control.send(TaskEnded(task.name, exit_code, now))


def main(argv: list[str]) -> None:
    """Serve one job; the module docstring describes the arguments."""
    control_fd, job_dir, modules, *lock_fds = argv
    set_name("forkserver")
    become_subreaper()
    # the end of the launcher is not noticed while modules are imported
    die_with_parent(os.getppid())
    preload((*ALWAYS, *filter(None, modules.split(","))))
    outlive_parent()  # there will be tasks to end
    locks = [FileLock.adopt(Path(), int(fd)) for fd in lock_fds]
    os.set_inheritable(int(control_fd), False)
    server = ForkServer(
        MessageSocket(socket.socket(fileno=int(control_fd))), JobFolder(Path(job_dir))
    )
    try:
        signum = server.serve()
    except CsrunError as error:
        kill_descendants()
        sys.exit(str(error))  # the end of the server's log, which the launcher prints
    except OSError as error:
        print(f"launcher lost: {error}", file=sys.stderr)
        signum = None
    kill_descendants()
    # Only now: a held lock means that a process of the job lives.
    for held in locks:
        held.release()
    if signum is not None:
        # By the signal itself, so that the exit status tells the launcher which one it was.
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
    # The launcher waits, and the interpreter's regular exit would free each imported module.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
