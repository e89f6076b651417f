"""Merging of consecutive machine-code calls: which calls are merged, and their results."""

import ast
from ctypes import CFUNCTYPE, POINTER, addressof, c_int64, c_void_p, cast

import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.programs import Machine, Network

from csrun.base.mode import ExecutionMode
from csrun.executable import bound_kernel, executable, machine_code, stretches
from csrun.executable.team import BoundCall, Job, bind_jobs

PROGRAM = """
def relu_1(x):
    return x

def bind_wafer(v, runtime):
    a = relu_1(v)
    b = relu_1(v)
    c = other(v)
    def forward(batch, step):
        labels, = batch
        a()
        b(labels, 1.0 / step.counts[0])
        c()
        a()
        b(total[0])
        a(float(loss[0]))
        mark(1)
        b()
        a(labels)
    return [forward]
"""
JOINED = """
def relu_1(x):
    return x

def bind_wafer(v, runtime):
    a = relu_1(v)
    b = relu_1(v)
    c = other(v)
    stretch_0 = join_calls((a, b), (0, 2))
    stretch_1 = join_calls((b, a), (0, 1))
    def forward(batch, step):
        labels, = batch
        stretch_0(labels, 1.0 / step.counts[0])
        c()
        a()
        b(total[0])
        a(float(loss[0]))
        mark(1)
        stretch_1(labels)
    return [forward]
"""


def test_lines_that_follow_each_other_are_joined():
    found = stretches.with_stretches(PROGRAM, {"relu_1"})
    assert ast.unparse(found) == ast.unparse(ast.parse(JOINED))


def test_a_call_keeps_the_line_of_the_first_one():
    found = stretches.with_stretches(PROGRAM, {"relu_1"})
    lines = {n.func.id: n.lineno for n in ast.walk(found) if isinstance(n, ast.Call)
             and isinstance(n.func, ast.Name) and n.func.id.startswith("stretch_")}  # fmt: skip
    wanted = PROGRAM.splitlines()
    assert [wanted[line - 1].strip() for line in lines.values()] == ["a()", "b()"]


def test_a_long_stretch_is_cut():
    lines = "\n".join(["        a()"] * 40)
    program = f"def bind_wafer(v):\n    a = relu_1(v)\n    def forward(batch, step):\n{lines}\n"
    found = ast.unparse(stretches.with_stretches(program, {"relu_1"}))
    assert [found.count(f"stretch_{n}()") for n in range(4)] == [1, 1, 1, 0]


ADD = CFUNCTYPE(None, c_void_p, c_int64, c_int64)


@ADD
def _log_job(arguments, first, last):
    values = cast(arguments, POINTER(c_int64))
    LOG.append((values[0], first, last))


LOG = []


@pytest.fixture
def bound():
    """Calls of one job each, which log their number."""
    LOG.clear()
    code = machine_code.MachineCode((_common(),), ())
    words = [(c_int64 * 1)(number) for number in range(3)]
    address = cast(_log_job, c_void_p).value
    return [bind_jobs(code, None, [Job(address, [addressof(w)], 5, 5)], words) for w in words]


def _common():
    from csrun.compiler.emit.llvm.module import common_text
    from csrun.executable.products import tile_of

    return machine_code.build(common_text(tile_of(machine_code.host())))


def test_jobs_run_in_the_order_of_the_calls(bound):
    first, second, third = bound
    joined = stretches.join_calls((first, third, second), (0, 0, 0))
    assert isinstance(joined, BoundCall)
    joined()
    assert LOG == [(0, 0, 5), (2, 0, 5), (1, 0, 5)]


def test_a_call_without_machine_code_runs_between_the_others(bound):
    first, second, third = bound
    joined = stretches.join_calls(
        (first, second, lambda *values: LOG.append(values), third), (0, 0, 2, 0)
    )
    joined("labels", 4.0)
    assert LOG == [(0, 0, 5), (1, 0, 5), ("labels", 4.0), (2, 0, 5)]


def test_numbers_without_arguments_are_set(monkeypatch):
    kernel = object.__new__(bound_kernel.BoundKernel)
    kernel.set_arguments, kernel.run = lambda: LOG.append("set") or [], BoundCall(print)
    monkeypatch.setattr(stretches, "joined_jobs", lambda _: lambda: LOG.append("ran"))
    LOG.clear()
    stretches.join_calls((kernel, kernel), (0, 0))()
    assert LOG == ["set", "set", "ran"]


def test_a_program_trains_as_without_stretches(tmp_path, monkeypatch):
    network = Network()
    compiled = network.compile(tmp_path, ExecutionMode.PIPELINED, kernels="llvm")

    def trained():
        machine = Machine(compiled, network.parameters(), 2)
        for batch in network.batches(3):
            machine.train(batch)
        return {name: value.tobytes() for name, value in machine.state.items()}

    calls = []
    join = stretches.join_calls
    monkeypatch.setattr(executable, "join_calls", lambda *a: calls.append(join(*a)) or calls[-1])
    found = trained()
    assert calls
    executable._code_of.cache_clear()
    monkeypatch.setattr(executable, "with_stretches", lambda program, _: ast.parse(program))
    assert trained() == found


def test_copied_inputs_live_until_all_kernels_have_run(monkeypatch):
    alive, seen = set(), []

    class Input:
        def __init__(self, name):
            self.name = name
            alive.add(name)

        def __del__(self):
            alive.remove(self.name)

    kernel = object.__new__(bound_kernel.BoundKernel)
    kernel.set_arguments, kernel.run = lambda value: [Input(value)], BoundCall(print)
    monkeypatch.setattr(stretches, "joined_jobs", lambda _: lambda: seen.append(set(alive)))
    stretches.join_calls((kernel, kernel), (1, 1))("a", "b")
    assert seen == [{"a", "b"}]
    assert not alive
