"""Visits of a step: handmade kernels, and whole models whose layers are not a chain."""

from dataclasses import dataclass

import numpy as np
import pytest
from support.programs import ArrayData, Network, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.compiler import compile_model
from csrun.compiler.graph.graph import LOSS, Array
from csrun.compiler.kernels import Kernel, Phase
from csrun.compiler.plan.gradient_order import first_group_before_last
from csrun.compiler.plan.visits import GroupUse, functions_of, with_frees
from csrun.executable import GRADIENT
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

NOTHING, STEPS = GroupUse(), 3
READ, OTHER = Array("activation", (1,), "float32"), Array("other", (1,), "float32")
MODES = (ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING)


@dataclass(frozen=True)
class Handmade(Kernel):
    """Kernel that uses groups; `writes` are by name."""

    phase: Phase = Phase.FORWARD
    use: GroupUse = NOTHING
    reads: tuple[Array, ...] = ()
    writes: tuple[Array, ...] = ()

    def emit(self, name):
        return []


def forward(*weights, writes=()):
    return Handmade("layer", Phase.FORWARD, GroupUse(frozenset(weights)), (), writes)


def backward(*weights, gives=()):
    return Handmade("layer", Phase.BACKWARD, GroupUse(frozenset(weights), frozenset(gives)))


def visits_of(*kernels, trained=(0, 1, 2)):
    functions = functions_of(kernels, lambda kernel: kernel.use, frozenset(trained))
    assert [k for function in functions for k in function.kernels] == [*kernels]
    return [function.visit for function in functions]


def lines(visits):
    """One line per visit: its function, then the gradients that are complete after it."""
    return [" ".join([v.function, *map(str, v.completes)]) for v in visits]


LOSS_KERNEL = forward(writes=(LOSS,))


def test_a_chain_is_visited_forward_then_back():
    assert lines(
        visits_of(
            forward(),
            forward(0),
            forward(),
            forward(1),
            LOSS_KERNEL,
            backward(),
            backward(1, gives=[1]),
            backward(),
            backward(gives=[0]),
        )
    ) == ["forward_0", "forward_1", "backward_1 1", "backward_0 0"]


def test_a_tied_group_is_visited_twice_and_complete_once():
    visits = visits_of(
        forward(0),
        forward(1),
        forward(0),
        LOSS_KERNEL,
        backward(0, gives=[0]),
        backward(1, gives=[1]),
        backward(gives=[0]),
    )
    assert lines(visits) == [
        "forward_0",
        "forward_1",
        "forward_0_again_2",
        "backward_0",
        "backward_1 1",
        "backward_0_again_2 0",
    ]
    assert [visit.gradients for visit in visits] == [(), (), (), (0,), (1,), (0,)]


def test_a_group_that_is_read_after_its_gradients_is_complete_after_that():
    visits = visits_of(
        forward(0),
        forward(1),
        LOSS_KERNEL,
        backward(0, gives=[0]),
        backward(1, gives=[1]),
        backward(0),
    )
    assert lines(visits)[2:] == ["backward_0", "backward_1 1", "backward_0_again_2 0"]


def test_nothing_is_complete_before_the_loss():
    visits = visits_of(forward(0), forward(1), LOSS_KERNEL, trained=(0,))
    assert lines(visits) == ["forward_0", "forward_1 0"]


def test_what_is_not_trained_is_not_delivered():
    visits = visits_of(forward(0), forward(1), LOSS_KERNEL, backward(1, gives=[1]), trained=(1, 7))
    assert lines(visits) == ["forward_0", "forward_1", "backward_1 1"]


def test_a_model_without_weights_is_one_visit_of_nothing():
    assert lines(visits_of(forward(), forward())) == ["forward"]
    assert visits_of() == []


def test_a_buffer_is_freed_by_its_last_reader():
    functions = functions_of(
        [forward(0), forward(0), forward(1)], lambda kernel: kernel.use, frozenset()
    )
    assert [v.frees for v in with_frees(functions, {"a": 0, "b": 1, "c": 2, "kept": 3})] == [
        ("a", "b"),
        ("c",),
    ]


def gated(late: bool):
    """Gate that is computed before a chain of layers and multiplied with the chain's result."""
    with Tracer() as tracer:
        x = tracer.input("features", (8, 16), "float32")
        labels = tracer.input("labels", (8,), "int32")
        gate = nn.Dense(16, "sigmoid", name="gate")(x)
        hidden = x
        for index in range(3):
            hidden = nn.Dense(16, "relu", name=f"h/d{index}")(hidden)
        hidden = hidden * gate if late else hidden + gate
        loss = nn.softmax_cross_entropy(nn.Dense(5, name="out")(hidden), labels)
        return tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])


@pytest.mark.parametrize("late", [True, False])
def test_a_layer_that_is_computed_early_and_read_late_leaves_the_groups_alone(tmp_path, late):
    options = options_of(ExecutionMode.WEIGHT_STREAMING, group_bytes=1)
    plan = compile_model(gated(late), tmp_path, options).executable.plan
    names = ["gate", "h/d0", "h/d1", "h/d2", "out"]
    assert [group.layers for group in plan.groups] == [(name,) for name in names]
    assert sorted(plan.deliveries) == [0, 1, 2, 3, 4]
    assert len(plan.visits) == 11  # of the gradients of h/d0 most are made last


@pytest.mark.parametrize("mode", MODES)
def test_no_visit_uses_what_an_earlier_one_freed(tmp_path, mode):
    executable = Network((12, 40, 30, 5), dropout=0.3).compile(tmp_path, mode, 1)
    plan = executable.plan
    listing = (executable.directory / "kernels.txt").read_text()
    functions, current = {}, ""
    for line in listing.splitlines():
        if line.startswith(" "):
            words = line.replace("->", ",").split(": ", 2)[2]
            functions[current] |= {word.strip() for word in words.split(",")}
        else:
            current = line
            functions[current] = set()
    assert [*functions] == [visit.function for visit in plan.visits]
    freed: set[str] = set()
    for visit in plan.visits:
        assert not freed & functions[visit.function]
        freed |= {*visit.frees}
    kept = {output.buffer for output in plan.outputs} | {plan.loss_buffer}
    assert freed == {buffer.name for buffer in plan.buffers} - kept


@pytest.mark.parametrize("sizes", [(64, 64, 64, 64, 8), (64, 512, 16, 16, 512, 8)])
def test_the_wafer_holds_at_most_two_of_the_largest_group_beside_the_activations(tmp_path, sizes):
    plan = Network(sizes).compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1).plan
    assert len(plan.groups) == len(sizes) - 1
    slots = max(group.slot_offset_bytes + group.nbytes for group in plan.groups)
    assert slots <= 2 * max(group.nbytes for group in plan.groups)
    assert min(buffer.offset_bytes for buffer in plan.buffers) == slots


def gives(group, reads=(READ,), also=()):
    """Kernel that computes gradients of a group, and writes other arrays."""
    writes = (Array(f"{GRADIENT}w{group}", (1,), "float32"), *also)
    return Handmade("layer", Phase.BACKWARD, GroupUse(gradients=frozenset([group])), reads, writes)


def passes_on(group, writes=(OTHER,)):
    """Kernel that computes the gradient of a group's input."""
    return Handmade("layer", Phase.BACKWARD, GroupUse(frozenset([group])), (), writes)


def moved(*backwards):
    """New order of backward kernels, as indices, after a forward pass over groups 0 and 1."""
    before = [forward(0), forward(1), LOSS_KERNEL]
    kernels = [*before, *backwards]
    found = first_group_before_last(kernels, lambda kernel: kernel.use)
    assert [*found[:3]] == before
    numbers = {id(kernel): number for number, kernel in enumerate(backwards)}
    return [numbers[id(kernel)] for kernel in found[3:]]


def test_the_first_groups_gradients_come_before_those_that_are_read_by_nobody():
    assert moved(gives(1), passes_on(1), gives(1), gives(0)) == [1, 3, 0, 2]


@pytest.mark.parametrize(
    "kernels",
    [
        (gives(1, also=[OTHER]), passes_on(1), gives(0)),  # what comes next is made with them
        (gives(1), passes_on(1, writes=[READ]), gives(0)),  # what they read is changed behind them
        (gives(1), passes_on(1), gives(0, also=[READ])),
        (gives(1), gives(0)),  # nothing stays
        (passes_on(1), gives(0)),  # nothing is late
        (gives(0), passes_on(0), gives(1)),  # the first group is not the last one
        (),
    ],
)
def test_else_all_stay_where_they_are(kernels):
    assert moved(*kernels) == [*range(len(kernels))]


def test_what_is_read_and_changed_before_is_no_hindrance():
    assert moved(passes_on(1, writes=[READ]), gives(1), gives(0)) == [0, 2, 1]


def plan_of(folder, mode, **options):
    return Network((12, 40, 30, 5), **options).compile(folder, mode, 1).plan


def test_where_weights_are_streamed_the_first_group_is_delivered_before_the_second(tmp_path):
    assert plan_of(tmp_path, ExecutionMode.WEIGHT_STREAMING).deliveries == (2, 0, 1)
    assert plan_of(tmp_path, ExecutionMode.PIPELINED).deliveries == (2, 1, 0)
    clipped = nn.SGD(0.1, clip_norm=1.0)  # all are updated after the last one
    plan = plan_of(tmp_path, ExecutionMode.WEIGHT_STREAMING, optimizer=clipped)
    assert plan.deliveries == (2, 1, 0)


def test_bits_are_those_of_the_other_order(tmp_path):
    network = Network((12, 40, 30, 5), dropout=0.3, optimizer=nn.AdamW(0.01))
    states = []
    for mode in (ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING):
        executable = network.compile(tmp_path / mode, mode, 1)
        machine = CpuMachine(executable, ArrayData(network.batches(STEPS)), RunSettings(seed=1), 0)
        machine.initialize()
        assert machine.run(StepOrder(0, STEPS)).done == STEPS
        states.append({name: np.array(array) for name, array in machine.state.items()})
    for name, array in states[0].items():
        np.testing.assert_array_equal(states[1][name], array, err_msg=name)
