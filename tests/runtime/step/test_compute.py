"""Several minibatches per step: PyTorch's gradients, and unchanged dropout masks."""

import msgspec
import numpy as np
import pytest
from support.programs import Network, options_of, step_of

from csrun.base.mode import RunMode
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.compiler import compile_model
from csrun.executable import Runtime, state_views, wafer_views
from csrun.runtime.step.engine import make_compute
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.results import ResultSlots, result_slot_bytes

SIZES = (12, 7, 9, 5)
BATCH = 16


class Collected:
    """Weights set by the test and never updated; counts deliveries."""

    def __init__(self) -> None:
        self.delivered: list[int] = []

    def enter(self, visit):
        pass

    def deliver(self, group, step):
        self.delivered.append(group)

    def settle(self):
        pass


def one_step(root, minibatches, batch, rows=BATCH, dropout=0.0, run_mode=RunMode.TRAIN, replicas=1):
    """Loss, gradients by parameter, outputs and deliveries of one step with seeded weights."""
    network = Network(SIZES, BATCH // (replicas * minibatches), dropout=dropout)
    options = options_of(run_mode=run_mode, minibatches_in_flight=minibatches, replicas=replicas)
    executable = compile_model(network.trace(run_mode), root, options).executable
    plan = executable.plan
    arena = np.full(plan.arena_bytes, 0xFF, np.uint8)  # NaN everywhere: nothing unwritten is read
    store = arena[: plan.store.nbytes]
    for name, array in state_views(plan, store).items():
        array[...] = network.parameters().get(name, 0)
    weights = Collected()
    compute = make_compute(PlacedProgram(executable, arena, store, Runtime(5)), weights)
    loss = compute.run(batch, step_of(plan, batch, rows, 3)) / rows
    slots = ResultSlots(plan, np.zeros(result_slot_bytes(plan), np.uint8))
    slots.record(0, loss, rows, rows)
    slots.record_outputs(0, compute.outputs)
    views = wafer_views(plan, arena, store)
    gradients = {
        p.name: views[f"gradient:{p.name}"].copy()
        for p in plan.parameters
        if run_mode is RunMode.TRAIN
    }
    return loss, gradients, slots.read(0, 3).outputs, weights.delivered


def batch_of(rows=BATCH):
    return Network(SIZES, BATCH).batches(1, rows)[0]


@pytest.mark.parametrize("rows", [BATCH, 11, 3])
@pytest.mark.parametrize(
    ("replicas", "minibatches"), [(1, 2), (1, 4), (1, 16), (2, 1), (8, 1), (16, 1), (4, 2)]
)
def test_loss_and_gradients_are_those_of_the_whole_batch_in_pytorch(
    tmp_path, replicas, minibatches, rows
):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    x, labels = batch_of(rows)
    tensors = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in Network(SIZES).parameters().items()
    }
    hidden = torch.tensor(x, dtype=torch.float64).flatten(1)
    for layer in ("dense", "dense_1", "dense_2"):
        hidden = hidden @ tensors[f"{layer}/kernel"] + tensors[f"{layer}/bias"]
        hidden = hidden if layer == "dense_2" else hidden.relu()
    targets = torch.tensor(labels).long()
    expected = torch.nn.functional.cross_entropy(hidden, targets, ignore_index=IGNORE_INDEX)
    expected.backward()

    loss, gradients, outputs, delivered = one_step(
        tmp_path, minibatches, (x, labels), rows, replicas=replicas
    )
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for name, tensor in tensors.items():
        reference = tensor.grad.numpy()
        error = np.abs(gradients[name] - reference).max() / np.abs(reference).max()
        assert error < 1e-5, name
    np.testing.assert_allclose(outputs["logits"], hidden.detach()[:rows], rtol=1e-4, atol=1e-5)
    # minibatches in flight pass through the layers, each a group of its own
    assert delivered == ([2, 1, 0] if minibatches > 1 else [0])


def test_dropout_draws_the_same_masks_however_the_batch_is_split(tmp_path):
    batch = batch_of()
    whole = one_step(tmp_path, 1, batch, dropout=0.5)
    for replicas, minibatches in ((1, 2), (1, 8), (4, 1), (2, 4)):
        split = one_step(tmp_path, minibatches, batch, dropout=0.5, replicas=replicas)
        np.testing.assert_allclose(split[2]["logits"], whole[2]["logits"], rtol=1e-5, atol=1e-6)
    without = one_step(tmp_path, 1, batch)
    assert not np.allclose(without[2]["logits"], whole[2]["logits"])


def test_evaluation_in_minibatches_gives_the_same_outputs(tmp_path):
    batch = batch_of(13)
    whole = one_step(tmp_path, 1, batch, 13, run_mode=RunMode.EVAL)
    for replicas, minibatches in ((1, 4), (4, 1), (2, 2)):
        split = one_step(tmp_path, minibatches, batch, 13, run_mode=RunMode.EVAL, replicas=replicas)
        assert split[0] == pytest.approx(whole[0], rel=1e-6)
        np.testing.assert_array_equal(split[2]["prediction"], whole[2]["prediction"])
        assert len(split[2]["logits"]) == 13


def test_the_plan_says_where_every_minibatch_is(tmp_path):
    """Buffers of all minibatches, partial gradients and the store do not overlap."""
    options = options_of(minibatches_in_flight=4)
    plan = compile_model(Network(SIZES, 4).trace(), tmp_path, options).executable.plan
    assert plan.batch_size == BATCH
    assert plan.inputs[0].shape[0] == BATCH
    first = min(b.offset_bytes for b in plan.buffers)
    assert first >= plan.store.nbytes
    end = max(
        b.offset_bytes + int(np.prod(b.shape)) * np.dtype(b.dtype).itemsize for b in plan.buffers
    )
    assert end - first <= plan.minibatch_stride_bytes
    assert plan.partial_offset_bytes >= first + 4 * plan.minibatch_stride_bytes
    assert plan.arena_bytes >= plan.partial_offset_bytes + max(g.nbytes for g in plan.groups)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=type(plan)) == plan
