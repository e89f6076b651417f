"""Visits bound to batches in reused memory: which visits are bound, and their results."""

import ast

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="machine code is built with llvmlite")
from support.programs import Machine, Network

from csrun.base.mode import ExecutionMode
from csrun.executable import batch_calls, stretches
from csrun.executable.arrays import ReusedBatch
from csrun.executable.batch_calls import BatchVisit

PROGRAM = """
def bind_wafer(v, runtime):
    a = relu_1(v)
    def forward(batch, step):
        features, labels = batch
        features_t = features.T
        a(features_t, 1.0 / step.counts[0])
        a()
        a(labels, step)
    def middle(batch, step):
        a()
    def backward(batch, step):
        features, labels = batch
        other(labels)
        a(labels)
    def padded(batch, step):
        features, labels = batch
        features[4:] = 0.0
        a(features)
    return [forward, middle, backward, padded]
"""
BOUND = """
def forward_inputs(batch):
    features, labels = batch
    features_t = features.T
    return (features_t, labels)
def forward_numbers(step):
    return (1.0 / step.counts[0], step)
forward = bind_batches(forward, ((a, 1, 1), (a, 0, 0), (a, 1, 1)), forward_inputs, forward_numbers)
"""


def test_a_visit_that_only_calls_kernels_is_bound():
    (_, *lines) = ast.walk(stretches.with_stretches(PROGRAM, {"relu_1"}))
    found = [line for line in lines if isinstance(line, ast.FunctionDef | ast.Assign)
             and "forward_" in ast.unparse(line)]  # fmt: skip
    own = [ast.unparse(line) for line in found if not ast.unparse(line).startswith("def bind")]
    assert sorted(own) == sorted(map(ast.unparse, ast.parse(BOUND).body))


def test_reused_batches_change_no_bit(tmp_path, monkeypatch):
    network = Network()
    compiled = network.compile(tmp_path, ExecutionMode.PIPELINED, kernels="llvm")
    bound = []
    bind = BatchVisit._bind
    monkeypatch.setattr(BatchVisit, "_bind", lambda *a: bound.append(bind(*a)) or bound[-1])

    def trained(reused):
        machine = Machine(compiled, network.parameters(), 2)
        for number, batch in enumerate(network.batches(5)):
            given = batch
            if reused:
                given = reused[number % 2]
                for own, array in zip(given, batch, strict=True):
                    own[...] = array
            machine.train(given)
        return {name: value.tobytes() for name, value in machine.state.items()}

    wanted = trained(())
    assert not bound
    slots = [ReusedBatch(map(np.empty_like, *network.batches(1))) for _ in range(2)]
    assert trained(slots) == wanted
    assert bound
    assert all(bound)
    assert len(bound) % 2 == 0, "each visit is bound once to each batch"


def test_a_visit_without_machine_code_stays_as_it_is():
    def visit(batch, step):
        pass

    assert batch_calls.bind_batches(visit, [(print, 1, 0)], None, None) is visit


def test_a_batch_whose_input_must_be_copied_is_computed_by_the_visit():
    seen = []
    call = object.__new__(batch_calls.BoundKernel)
    call.has_numbers, call.bind = False, lambda *inputs: None
    visit = batch_calls.bind_batches(
        lambda batch, step: seen.append(batch), [(call, 1, 0)], lambda batch: batch, None
    )
    batch = ReusedBatch([np.zeros(3)])
    visit(batch, None)
    assert seen == [batch]
