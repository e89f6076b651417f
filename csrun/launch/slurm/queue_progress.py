"""Progress of a job in Slurm's queue: prints the reason for waiting when it changes."""

import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from csrun.launch.slurm.squeue import waits_for

QUERY_EVERY_S = 10.0  # squeue queries a controller that serves other users, too
_QUEUED = re.compile(r"srun: job (\d+) queued")
_NO_REASON = ("", "None")


def job_of(line: str) -> int:
    """Return the job number in a line of srun about queueing; 0 for other lines."""
    queued = _QUEUED.match(line)
    return int(queued[1]) if queued else 0


class QueueWatch:
    """Asks squeue for the reason in a thread, since the caller must not wait for the answer."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._job_id = ""
        self._query: subprocess.Popen[str] | None = None
        self._next_s = 0.0
        self._printed = ""

    def handle_line(self, line: str) -> None:
        """Process a line of srun, which may name the waiting job."""
        if job_id := job_of(line):
            self._job_id, self._next_s = str(job_id), monotonic() + 1

    def poll(self) -> None:
        """Query when due; print the answer if it has changed."""
        if self._query is not None and self._query.poll() is not None:
            output, _ = self._query.communicate()
            self._query = None
            reasons = (line.strip() for line in output.splitlines())
            self._print_reason(next((each for each in reasons if each not in _NO_REASON), ""))
        if self._job_id and self._query is None and monotonic() >= self._next_s:
            self._next_s = monotonic() + QUERY_EVERY_S
            self._start_query()

    def close(self) -> None:
        """Stop; the job is no longer waiting."""
        self._job_id = ""
        if self._query is not None:
            self._query.kill()
            self._query.communicate()
            self._query = None

    def _start_query(self) -> None:
        with suppress(OSError):
            self._query = subprocess.Popen(
                ("squeue", "--noheader", f"--jobs={self._job_id}", "--format=%r"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def _print_reason(self, reason: str) -> None:
        if reason and reason != self._printed:
            self._printed = reason
            self._print_line(f"csrun_wse: job {self._job_id} {waits_for(reason)}")
