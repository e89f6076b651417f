"""Replicas of a model on several threads: PyTorch's step, with equal bits for any thread count."""

from dataclasses import dataclass

import numpy as np
import pytest
from support.programs import Network, options_of, step_of

from csrun.base.half_formats import FLOAT16
from csrun.base.mode import RunMode
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.compiler import compile_model
from csrun.executable import Runtime, StepState, machine_code, state_views
from csrun.executable.arrays import ReusedBatch, SplitBatch
from csrun.executable.threads import Threads, threads_of
from csrun.runtime.step import call_threads
from csrun.runtime.step.engine import make_compute
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.sent_weights import SentWeights
from csrun.runtime.step.updates import Updates
from csrun.runtime.step.weights import ResidentWeights

SIZES, BATCH, STEPS = (12, 7, 9, 5), 48, 3
KERNELS = [
    "numpy",
    pytest.param(
        "llvm",
        marks=pytest.mark.skipif(
            not machine_code.is_supported(), reason="machine code is built with llvmlite"
        ),
    ),
]
ONE = Runtime(seed=5)


@dataclass(frozen=True)
class Trained:
    """Losses of a few steps, the last step's logits, and the weights after them."""

    losses: list[float]
    logits: list[np.ndarray]
    weights: dict[str, np.ndarray]

    def assert_bits(self, other: "Trained") -> None:
        assert self.losses == other.losses
        for ours, theirs in zip(self.logits, other.logits, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for name, array in self.weights.items():
            np.testing.assert_array_equal(array, other.weights[name], err_msg=name)


def compiled(root, count, kernels="numpy", dropout=0.0, storage=None, **split):
    parts = count * int(np.prod(list(split.values())))
    network = Network(SIZES, BATCH // parts, dropout=dropout, storage=storage)
    options = options_of(kernels=kernels, replicas=count, **split)
    return network, compile_model(network.trace(), root, options).executable


def trained(network, executable, runtime, rows=BATCH, is_split=False) -> Trained:
    """A few steps on the same batch, in memory filled with NaN.

    is_split: the batch has a separate part for each replica.
    """
    plan = executable.plan
    arena = np.full(plan.arena_bytes, 0xFF, np.uint8)
    store = arena[: plan.store.nbytes]
    store[...] = 0
    state = state_views(plan, store)
    for name, value in network.parameters().items():
        state[name][...] = value
    sent = SentWeights(executable, store)
    updates = Updates(plan, sent.after_updates(executable.update_program(store, ONE)))
    weights = ResidentWeights(updates, sent)
    weights.resume()
    compute = make_compute(PlacedProgram(executable, arena, store, runtime), weights)
    arrays = Network(SIZES, BATCH).batches(1, rows)[0]
    batch = ReusedBatch(arrays)
    if is_split:
        parts = zip(*(np.split(array, plan.replicas) for array in arrays), strict=True)
        batch = SplitBatch(list(map(ReusedBatch, parts)))
    losses = [compute.run(batch, step_of(plan, arrays, rows, n)) / rows for n in range(STEPS)]
    (logits,) = (n for n, output in enumerate(plan.outputs) if output.name == "logits")
    weights_after = {name: state[name].copy() for name in network.parameters()}
    return Trained(losses, [part.copy() for part in compute.outputs[logits]], weights_after)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("rows", [BATCH, 29])
@pytest.mark.parametrize(
    ("count", "split"),
    [
        (2, {}),
        (6, {}),
        (3, {"micro_batches": 4}),
        (2, {"minibatches_in_flight": 3}),
        (2, {"micro_batches": 2, "minibatches_in_flight": 2}),
    ],
)
def test_steps_are_those_of_the_whole_batch_in_pytorch(tmp_path, count, split, rows, kernels):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle here")
    network, executable = compiled(tmp_path, count, kernels, **split)
    found = trained(network, executable, Runtime(seed=5, replica_threads=2), rows)

    x, labels = Network(SIZES, BATCH).batches(1, rows)[0]
    tensors = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in network.parameters().items()
    }
    optimizer = torch.optim.SGD(list(tensors.values()), network.learning_rate, network.momentum)
    losses = []
    for _ in range(STEPS):
        hidden = torch.tensor(x, dtype=torch.float64).flatten(1)
        for layer in ("dense", "dense_1", "dense_2"):
            hidden = hidden @ tensors[f"{layer}/kernel"] + tensors[f"{layer}/bias"]
            hidden = hidden if layer == "dense_2" else hidden.relu()
        targets = torch.tensor(labels).long()
        loss = torch.nn.functional.cross_entropy(hidden, targets, ignore_index=IGNORE_INDEX)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
    logits = np.concatenate(found.logits)
    np.testing.assert_allclose(logits[:rows], hidden.detach()[:rows], rtol=1e-4, atol=1e-5)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(
            found.weights[name], tensor.detach(), rtol=1e-4, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    ("count", "options"),
    [(4, {"dropout": 0.5}), (4, {"storage": FLOAT16}), (3, {"micro_batches": 2})],
)
def test_the_bits_do_not_depend_on_the_threads(tmp_path, monkeypatch, count, options, kernels):
    """With three threads and four replicas, one replica is computed by all threads."""
    monkeypatch.setattr(call_threads, "LEAST_SHARED_SUM", 0)
    monkeypatch.setattr(call_threads, "SUMMED_AT_A_TIME", 16)
    network, executable = compiled(tmp_path, count, kernels, **options)
    expected = trained(network, executable, ONE)
    for threads in (1, 2, 3):
        for kernel_threads in {1, threads}:
            runtime = Runtime(seed=5, threads=kernel_threads, replica_threads=threads)
            trained(network, executable, runtime).assert_bits(expected)
    trained(network, executable, runtime, is_split=True).assert_bits(expected)


def test_an_evaluation_gives_the_outputs_of_all_samples(tmp_path):
    network = Network(SIZES, BATCH // 4)
    options = options_of(run_mode=RunMode.EVAL, replicas=4)
    executable = compile_model(network.trace(RunMode.EVAL), tmp_path, options).executable
    plan = executable.plan
    arena = np.zeros(plan.arena_bytes, np.uint8)
    x, _ = batch = Network(SIZES, BATCH).batches(1)[0]
    for name, value in network.parameters().items():
        state_views(plan, arena)[name][...] = value
    compute = make_compute(
        PlacedProgram(executable, arena, arena, Runtime(5, replica_threads=2)), None
    )
    compute.run(batch, step_of(plan, batch, BATCH))
    hidden = x.reshape(BATCH, -1)
    for layer in ("dense", "dense_1", "dense_2"):
        weights = (network.parameters()[f"{layer}/{part}"] for part in ("kernel", "bias"))
        kernel, bias = weights
        hidden = hidden @ kernel + bias
        hidden = hidden if layer == "dense_2" else np.maximum(hidden, 0)
    (logits,) = (n for n, output in enumerate(plan.outputs) if output.name == "logits")
    found = np.concatenate(compute.outputs[logits])
    np.testing.assert_allclose(found, hidden, rtol=1e-4, atol=1e-5)


def test_an_error_of_any_replica_is_raised(tmp_path):
    _, executable = compiled(tmp_path, 4)
    arena = np.zeros(executable.plan.arena_bytes, np.uint8)
    compute = make_compute(
        PlacedProgram(executable, arena, arena, Runtime(5, replica_threads=2)), None
    )

    def fail(batch, step):
        raise RuntimeError(f"sample {step.first_sample}")

    batch = Network(SIZES, BATCH).batches(1)[0]
    for number in range(4):
        healthy, compute._computes[number].run = compute._computes[number].run, fail
        with pytest.raises(RuntimeError, match=f"sample {number * BATCH // 4}"):
            compute.run(batch, StepState(rows=BATCH, counts=(BATCH,)))
        compute._computes[number].run = healthy


def test_each_thread_computes_replicas_if_there_are_enough(tmp_path, monkeypatch):
    _, executable = compiled(tmp_path, 4)
    assert threads_of(executable.plan, 3) == Threads(kernels=1, blas=1)  # too few FLOPs
    monkeypatch.setattr("csrun.executable.threads.LEAST_FLOPS", 0)
    assert threads_of(executable.plan, 3) == Threads(kernels=1, blas=1, replicas=3)
    assert threads_of(executable.plan, 8) == Threads(kernels=1, blas=1, replicas=4)


def test_kernels_on_all_threads_compute_too_few_replicas(tmp_path, monkeypatch):
    if not machine_code.is_supported():
        pytest.skip("machine code is built with llvmlite")
    _, executable = compiled(tmp_path, 4, "llvm")
    monkeypatch.setattr("csrun.executable.threads.LEAST_FLOPS", 0)
    assert threads_of(executable.plan, 4) == Threads(kernels=4, blas=1, replicas=4)
    assert threads_of(executable.plan, 8) == Threads(kernels=8, blas=1, replicas=1)
