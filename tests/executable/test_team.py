"""Threads that share the rows of jobs: each row is computed once on any number of CPUs."""

import os
import threading
from ctypes import addressof, c_int64, c_void_p
from time import monotonic, sleep

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")

from csrun.compiler.emit.llvm.team import DECLARED, TEAM_CODE
from csrun.executable import machine_code, team
from csrun.executable.arrays import empty

#: Counts each row that it computes, and adds up how often it was called.
COUNTING = """
define void @count(ptr %arguments, i64 %first, i64 %last) nounwind {
entry:
  %rows = load ptr, ptr %arguments
  %calls.at = getelementptr i64, ptr %arguments, i64 1
  %calls = load ptr, ptr %calls.at
  %old = atomicrmw add ptr %calls, i64 1 monotonic
  br label %head
head:
  %row = phi i64 [ %first, %entry ], [ %next, %body ]
  %is_left = icmp slt i64 %row, %last
  br i1 %is_left, label %body, label %end
body:
  %at = getelementptr i64, ptr %rows, i64 %row
  %before = load i64, ptr %at
  %after = add i64 %before, 1
  store i64 %after, ptr %at
  %next = add i64 %row, 1
  br label %head
end:
  ret void
}
"""

#: Writes the first and the last row of each call behind those of the calls before.
LOGGING = """
define void @log(ptr %arguments, i64 %first, i64 %last) nounwind {
  %log = load ptr, ptr %arguments
  %calls = load i64, ptr %log
  %more = add i64 %calls, 1
  store i64 %more, ptr %log
  %entry = getelementptr [2 x i64], ptr %log, i64 %more
  store i64 %first, ptr %entry
  %end = getelementptr i64, ptr %entry, i64 1
  store i64 %last, ptr %end
  ret void
}
"""


@pytest.fixture(scope="module")
def code():
    text = "\n".join([COUNTING, LOGGING, TEAM_CODE, *DECLARED.values()])
    return machine_code.MachineCode([machine_code.build(text)])


@pytest.fixture(params=[1, 2, 3])
def threads(code, request):
    found = team.Team(code, request.param) if request.param > 1 else None
    yield found
    if found is not None:
        found.close()
        assert not any(helper.is_alive() for helper in found._helpers)


def wait_until(is_so):
    end = monotonic() + 60
    while not is_so():
        assert monotonic() < end
        sleep(0.001)


class Counted:
    """Jobs over these numbers of rows, with counts of how often each row was computed."""

    def __init__(self, code, threads, sizes, chunk):
        self.rows = [np.zeros(max(n, 1), np.int64) for n in sizes]
        self.calls = np.zeros(len(sizes), np.int64)
        self.words = [
            (c_void_p * 2)(rows.ctypes.data, self.calls[n:].ctypes.data)
            for n, rows in enumerate(self.rows)
        ]
        count = 1 if threads is None else threads.threads
        jobs = [
            team.Job(code.address("count"), [addressof(words)] * count, n, chunk)
            for words, n in zip(self.words, sizes, strict=True)
        ]
        self.run = team.bind_jobs(code, threads, jobs)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_each_row_is_computed_once(code, threads, chunk):
    sizes = [1, 7, 0, 64, 129]
    counted = Counted(code, threads, sizes, chunk)
    for _ in range(500):
        counted.run()
    for size, rows in zip(sizes, counted.rows, strict=True):
        assert (rows[:size] == 500).all()
        assert (rows[size:] == 0).all()


def test_helpers_that_sleep_are_woken(code):
    found = team.Team(code, 2)
    counted = Counted(code, found, [64], 1)
    sleepers = found._memory[team.SLEEPERS :][:4].view(np.int32)
    for _ in range(5):
        wait_until(lambda: sleepers[0] == 1)
        counted.run()
    assert (counted.rows[0] == 5).all()
    found.close()


def test_a_thread_computes_its_part_and_then_what_others_have_left(code):
    """Half of the remaining rows at a time: its own rows from the front, others' from the back."""
    memory = empty(team.PARTS + 2 * team.PART_BYTES)
    memory[:] = 0
    memory[team.THREADS :].view(np.uint64)[0] = 2  # a helper that has no CPU
    log = np.zeros((64, 2), np.int64)
    arguments = (c_void_p * 1)(log.ctypes.data)
    table = (c_void_p * 2)(addressof(arguments), 0)
    job = np.array([code.address("log"), addressof(table), 125, 8])  # 16 chunks
    code.function("team.run", c_void_p, c_void_p, c_int64)(memory.ctypes.data, job.ctypes.data, 1)
    chunks = [(0, 4), (4, 6), (6, 7), (7, 8), (12, 16), (10, 12), (9, 10), (8, 9)]
    wanted = [(8 * first, min(8 * last, 125)) for first, last in chunks]
    assert [tuple(each) for each in log[1 : 1 + log[0, 0]].tolist()] == wanted


def test_helpers_compute_parts_of_their_own(code):
    found = team.Team(code, 2)
    calls = np.zeros(2, np.int64)
    rows = np.zeros((2, 1 << 20), np.int64)  # takes longer than to wake a helper
    words = [(c_void_p * 2)(rows[n].ctypes.data, calls[n:].ctypes.data) for n in range(2)]
    job = team.Job(code.address("count"), [addressof(each) for each in words], 1 << 20, 16)
    call = team.bind_jobs(code, found, [job])

    def is_shared():
        rows[:] = 0
        call()
        assert (rows.sum(axis=0) == 1).all()
        return rows[0, 0] and rows[1, 1 << 19]  # the first rows of both parts

    wait_until(is_shared)
    found.close()


def test_a_second_call_at_once_is_computed_by_its_own_thread(code):
    found = team.Team(code, 2)
    both = [Counted(code, found, [513, 1], 8) for _ in range(3)]
    callers = [threading.Thread(target=lambda c=c: [c.run() for _ in range(2000)]) for c in both]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((c.rows[0] == 2000).all() for c in both)
    found.close()


def test_a_forked_child_computes_without_helpers(code):
    found = team.Team(code, 2)
    counted = Counted(code, found, [64, 64], 1)
    counted.run()
    child = os.fork()
    if not child:
        counted.run()
        os._exit(0 if (counted.rows[1] == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found.close()


def test_a_process_has_one_team_for_each_number_of_threads(code):
    assert team.team_of(code, 1) is None
    first = team.team_of(code, 2)
    assert team.team_of(code, 2) is first
    child = os.fork()
    if not child:
        os._exit(0 if not team._teams else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    team._close_all()
