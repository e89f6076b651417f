"""Progress of a job in Slurm's queue: the reason why it waits, whenever that changes."""

import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from csrun.launch.slurm.squeue import waits_for

ASK_S = 10.0  # squeue is a question to a controller that others ask, too
_QUEUED = re.compile(r"srun: job (\d+) queued")
_NO_REASON = ("", "None")


def job_of(line: str) -> int:
    """The job that one of srun's lines says is queued; 0 for another line."""
    queued = _QUEUED.match(line)
    return int(queued[1]) if queued else 0


class QueueWatch:
    """Asks squeue for the reason, next to a loop that must not wait for the answer."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._job_id = ""
        self._asking: subprocess.Popen[str] | None = None
        self._next_s = 0.0
        self._said = ""

    def handle_line(self, line: str) -> None:
        """Take one of srun's lines: it names the job that waits."""
        if job_id := job_of(line):
            self._job_id, self._next_s = str(job_id), monotonic() + 1

    def look(self) -> None:
        """Ask when it is time to; say an answer that is another than before."""
        if self._asking is not None and self._asking.poll() is not None:
            told, _ = self._asking.communicate()
            self._asking = None
            reasons = (line.strip() for line in told.splitlines())
            self._tell(next((each for each in reasons if each not in _NO_REASON), ""))
        if self._job_id and self._asking is None and monotonic() >= self._next_s:
            self._next_s = monotonic() + ASK_S
            self._ask()

    def close(self) -> None:
        """The job waits no longer."""
        self._job_id = ""
        if self._asking is not None:
            self._asking.kill()
            self._asking.communicate()
            self._asking = None

    def _ask(self) -> None:
        with suppress(OSError):
            self._asking = subprocess.Popen(
                ("squeue", "--noheader", f"--jobs={self._job_id}", "--format=%r"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def _tell(self, reason: str) -> None:
        if reason and reason != self._said:
            self._said = reason
            self._say(f"csrun_wse: job {self._job_id} {waits_for(reason)}")
