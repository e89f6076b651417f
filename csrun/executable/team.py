"""A team of threads that computes the kernels of a program, and the calls that run on it.

The threads run machine code alone: how they share rows, spin and sleep is the program's own code
(`team.run` and `team.work` in common.ll). They belong to the process that first needs them; a
forked child has none, and computes in its own thread until it needs some.
"""

import atexit
import os
from collections.abc import Sequence
from ctypes import CDLL, addressof, c_int64, c_void_p, cast
from dataclasses import dataclass
from functools import partial
from threading import Thread

import numpy as np

from csrun.executable.arrays import ALIGNMENT_BYTES, Array
from csrun.executable.machine_code import MachineCode

#: Places in a team's memory, in bytes; what different threads write is in cache lines apart.
TICKET, DONE, JOB, GENERATION, SLEEPERS, STOP, BUSY, SYSTEM = 0, 64, 128, 192, 256, 320, 384, 448
THREADS = SYSTEM + 16
TEAM_BYTES = 512
_JOIN_S = 1.0


def empty(nbytes: int) -> Array:
    """Aligned memory, uint8[nbytes]."""
    whole = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT_BYTES
    return whole[start : start + nbytes]


@dataclass(frozen=True)
class Job:
    """Rows that threads share in chunks: a function, and its arguments for each thread.

    function: its address. arguments: addresses of arrays of words, one a thread.
    """

    function: int
    arguments: Sequence[int]
    rows: int
    chunk: int


class Team:
    """The threads of this process; the thread that calls is one of them."""

    def __init__(self, code: MachineCode, threads: int) -> None:
        self.threads = threads
        self._code = code
        self._memory = empty(TEAM_BYTES)
        self._memory[:] = 0
        self.address: int = self._memory.ctypes.data
        libc = CDLL(None)
        system = self._memory[SYSTEM:].view(np.uint64)
        system[0] = cast(libc.syscall, c_void_p).value or 0
        system[1] = cast(libc.sched_yield, c_void_p).value or 0
        self._memory[THREADS:].view(np.uint64)[0] = threads
        work = code.function("team.work", c_void_p, c_int64)
        self._helpers = [
            Thread(target=work, args=(self.address, n), name=f"team {n}", daemon=True)
            for n in range(1, threads)
        ]
        for helper in self._helpers:
            helper.start()

    def close(self) -> None:
        """End the helpers."""
        self._code.function("team.stop", c_void_p)(self.address)
        for helper in self._helpers:
            helper.join(_JOIN_S)


_teams: dict[int, Team] = {}  # of this process, by their number of threads


def team_of(code: MachineCode, threads: int) -> Team | None:
    """The team of so many threads, which is started if there is none; None for one thread."""
    if threads <= 1:
        return None
    if threads not in _teams:
        _teams[threads] = Team(code, threads)
    return _teams[threads]


@atexit.register
def _close_all() -> None:
    # Their code is unmapped while the interpreter ends.
    for team in _teams.values():
        team.close()
    _teams.clear()


os.register_at_fork(after_in_child=_teams.clear)


class BoundCall(partial[None]):
    """A call that runs jobs, one after the other; memory: what they point to."""

    jobs: tuple[Job, ...]
    code: MachineCode
    team: Team | None
    memory: object


def bind_jobs(
    code: MachineCode, team: Team | None, jobs: Sequence[Job], memory: object = None
) -> BoundCall:
    """Return the call of jobs."""
    tables = [(c_void_p * len(job.arguments))(*job.arguments) for job in jobs]
    words: list[int] = []
    for job, table in zip(jobs, tables, strict=True):
        words += [job.function, addressof(table), job.rows, job.chunk]
    own = (c_int64 * max(len(words), 1))(*words)
    address = team.address if team is not None else None
    run = code.function("team.run", c_void_p, c_void_p, c_int64)
    call = BoundCall(run, address, addressof(own), len(jobs))
    call.jobs, call.code, call.team = tuple(jobs), code, team
    call.memory = tables, own, memory
    return call


def joined_jobs(calls: Sequence[BoundCall]) -> BoundCall:
    """One call that runs the jobs of several, which have one team."""
    first, jobs = calls[0], [job for call in calls for job in call.jobs]
    return bind_jobs(first.code, first.team, jobs, calls)
