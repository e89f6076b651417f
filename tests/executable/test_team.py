"""Threads that share the rows of jobs: each row is computed once, whoever has a CPU."""

import os
import threading
from ctypes import addressof, c_void_p
from time import monotonic, sleep

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")

from csrun.compiler.emit.llvm.team import DECLARED, TEAM_CODE
from csrun.executable import machine_code, team

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


@pytest.fixture(scope="module")
def code():
    text = "\n".join([COUNTING, TEAM_CODE, *DECLARED.values()])
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
    """A call of jobs over as many rows each, and what it has counted."""

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


def test_helpers_compute_shares_that_become_smaller(code):
    found = team.Team(code, 2)
    calls = np.zeros(2, np.int64)
    rows = np.zeros(4096, np.int64)
    words = [(c_void_p * 2)(rows.ctypes.data, calls[n:].ctypes.data) for n in range(2)]
    job = team.Job(code.address("count"), [addressof(each) for each in words], 4096, 16)
    call = team.bind_jobs(code, found, [job])

    def is_shared():
        call()
        return calls.all()

    wait_until(is_shared)
    # Of 256 chunks a third of those that are left, at least one: 85, 57, 38, ...
    left, shares = 256, 0
    while left:
        left, shares = left - max(left // 3, 1), shares + 1
    assert calls.sum() == shares * rows[0]
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
