"""Batch normalization in compiled programs, with its running statistics, against PyTorch."""

import numpy as np
import pytest
from support.programs import ArrayData, Machine, options_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.compiler import compile_model
from csrun.compiler.errors import CompileError
from csrun.executable import state_layout
from csrun.nn.tracer import Tracer
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.wire.messages import StepOrder

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the kernels")

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
B, STEPS, VALID = 6, 10, 4  # the last batch has so many samples
TOLERANCES = {"float32": 2e-5, "float64": 1e-11}


def module(run_mode, precision, batch=B, clip_norm=None, **norm):
    """Norms over images and over features, and a norm on which no loss depends."""
    with Tracer(precision) as tracer:
        x = tracer.input("features", (batch, 2, 6, 5), precision)
        labels = tracer.input("labels", (batch,), "int32")
        x = nn.BatchNorm(name="first", **norm)(nn.Conv2D(4, 3, padding=1, name="conv")(x))
        x = nn.flatten(nn.MaxPool(2)(nn.relu(x)))
        second = nn.BatchNorm(momentum=0.3, epsilon=1e-3, name="second", **norm)
        hidden = second(nn.Dense(7, name="up")(x))
        nn.BatchNorm(name="beside", **norm)(x)
        logits = nn.Dense(3, name="out")(nn.tanh(hidden))
        loss = nn.softmax_cross_entropy(logits, labels)
        train_op = nn.SGD(0.1, momentum=0.9, clip_norm=clip_norm).minimize(loss)
        return tracer.finish(run_mode, loss, train_op, [("logits", logits)])


class Peer(torch.nn.Module):
    """The same network in PyTorch, in float64."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.first = torch.nn.BatchNorm2d(4)
        self.up = torch.nn.Linear(24, 7)
        self.second = torch.nn.BatchNorm1d(7, 1e-3, 0.3)
        self.beside = torch.nn.BatchNorm1d(24)
        self.out = torch.nn.Linear(7, 3)
        self.double()

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(self.first(self.conv(x)).relu(), 2).flatten(1)
        self.beside(x)
        return self.out(self.second(self.up(x)).tanh())

    def named(self):
        """PyTorch's tensors by csrun's names, with dense kernels in csrun's layout."""
        names = {"running_mean": "running_mean", "running_var": "running_var", "bias": "bias"}
        found = {}
        for name, value in self.state_dict().items():
            layer, what = name.split(".")
            is_norm = layer in ("first", "second", "beside")
            is_dense = layer in ("up", "out")
            if what == "num_batches_tracked":
                continue
            ours = names.get(what, "gamma" if is_norm else "kernel")
            ours = "beta" if is_norm and what == "bias" else ours
            found[f"{layer}/{ours}"] = value.T if is_dense and ours == "kernel" else value
        return found


def batches(precision, random, valid=VALID):
    """Batches of samples; the last one is padded with values that must not count."""
    for number in range(STEPS):
        rows = valid if number == STEPS - 1 else B
        features = (random.standard_normal((B, 2, 6, 5)) * 3 + number % 3).astype(precision)
        labels = random.integers(0, 3, B).astype(np.int32)
        features[rows:], labels[rows:] = 1e3, IGNORE_INDEX
        yield rows, features, labels


@pytest.fixture
def peer():
    torch.manual_seed(4)
    return Peer()


def machine_of(root, peer, precision, mode, run_mode=RunMode.TRAIN, **options):
    options_ = options_of(mode, run_mode, group_bytes=400)
    executable = compile_model(module(run_mode, precision, **options), root, options_).executable
    parameters = {name: value.numpy() for name, value in peer.named().items()}
    kept = {p.name for p in executable.plan.parameters}
    return Machine(executable, {n: v for n, v in parameters.items() if n in kept})


@pytest.mark.parametrize(
    ("mode", "precision", "clip_norm"),
    [(PIPELINED, "float64", None), (STREAMING, "float64", 0.2), (STREAMING, "float32", None)],
)
def test_steps_and_the_running_state_are_pytorchs(tmp_path, peer, mode, precision, clip_norm):
    machine = machine_of(tmp_path, peer, precision, mode, clip_norm=clip_norm)
    optimizer = torch.optim.SGD(peer.parameters(), 0.1, momentum=0.9)
    for rows, features, labels in batches(precision, np.random.default_rng(1)):
        loss, _ = machine.train((features, labels))
        optimizer.zero_grad()
        valid = torch.from_numpy(features[:rows]).double(), torch.from_numpy(labels[:rows]).long()
        expected = torch.nn.functional.cross_entropy(peer(valid[0]), valid[1])
        expected.backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(peer.parameters(), clip_norm)
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=TOLERANCES[precision])
    tolerance = 10 * TOLERANCES[precision]
    for name, value in peer.named().items():
        np.testing.assert_allclose(machine.state[name], value, tolerance, tolerance, err_msg=name)
    assert np.abs(machine.state["first/running_mean"]).max() > 0.1


def in_parts(peer, features, labels, size):
    """PyTorch's loss and gradients over minibatches, and the mean of their state updates."""
    first = {name: value.clone() for name, value in peer.named_buffers()}
    following = {name: torch.zeros_like(value) for name, value in first.items()}
    total = 0.0
    for at in range(0, len(features), size):
        own = torch.from_numpy(features[at : at + size]).double()
        wanted = torch.from_numpy(labels[at : at + size]).long()
        loss = torch.nn.functional.cross_entropy(peer(own), wanted, reduction="sum") / len(labels)
        loss.backward()
        total += loss.item()
        for name, value in peer.named_buffers():
            if value.is_floating_point():
                following[name] += value * len(own) / len(features)
                value.copy_(first[name])
    return total, following


@pytest.mark.parametrize(
    "split",
    [
        {"minibatches_in_flight": 2},
        {"replicas": 2},
        {"micro_batches": 2},
        {"minibatches_in_flight": 1},
    ],
)
def test_by_minibatch_each_has_statistics_of_its_own(tmp_path, peer, split):
    """The last batch has five samples: minibatches of three and two, or a single one of five."""
    count = max(split.values())
    traced = module(RunMode.TRAIN, "float64", B // count, by_minibatch=True)
    options = options_of(PIPELINED, RunMode.TRAIN, group_bytes=400, **split)
    executable = compile_model(traced, tmp_path, options).executable
    made = batches("float64", np.random.default_rng(1), valid=5)
    given = [(features[:rows], labels[:rows]) for rows, features, labels in made]
    machine = CpuMachine(executable, ArrayData(given), RunSettings(seed=1), 0)
    for name, value in peer.named().items():
        machine.state[name][...] = value
    optimizer = torch.optim.SGD(peer.parameters(), 0.1, momentum=0.9)
    for step, (features, labels) in enumerate(given):
        assert machine.run(StepOrder(step, 1)).bad_loss is None
        optimizer.zero_grad()
        loss, following = in_parts(peer, features, labels, B // count)
        optimizer.step()
        for name, value in peer.named_buffers():
            value.copy_(following[name])
        assert machine.result(0, step).loss == pytest.approx(loss, rel=1e-11)
    for name, value in peer.named().items():
        np.testing.assert_allclose(machine.state[name], value, 1e-10, 1e-10, err_msg=name)
    assert np.abs(machine.state["first/running_mean"]).max() > 0.1


def test_a_minibatch_of_padding_alone_gives_nothing(tmp_path, peer):
    """Two samples in three minibatches of two: only the first minibatch sets the statistics."""
    traced = module(RunMode.TRAIN, "float64", B // 3, by_minibatch=True)
    options = options_of(PIPELINED, RunMode.TRAIN, minibatches_in_flight=3)
    executable = compile_model(traced, tmp_path, options).executable
    _, features, labels = next(batches("float64", np.random.default_rng(3)))
    given = [(features[:2], labels[:2])]
    machine = CpuMachine(executable, ArrayData(given), RunSettings(seed=1), 0)
    for name, value in peer.named().items():
        machine.state[name][...] = value
    assert machine.run(StepOrder(0, 1)).bad_loss is None
    loss, following = in_parts(peer, *given[0], 2)
    assert machine.result(0, 0).loss == pytest.approx(loss, rel=1e-11)
    mean = machine.state["first/running_mean"]
    np.testing.assert_allclose(mean, following["first.running_mean"], 1e-11, 1e-11)
    assert all(np.isfinite(value).all() for value in machine.state.values())


@pytest.mark.parametrize("mode", ExecutionMode)
def test_an_evaluation_reads_the_running_state_and_leaves_it(tmp_path, peer, mode):
    _, features, labels = next(batches("float64", np.random.default_rng(2)))
    peer(torch.from_numpy(features))  # moves its state
    peer.eval()
    machine = machine_of(tmp_path, peer, "float64", mode, RunMode.EVAL)
    before = {name: value.copy() for name, value in machine.state.items()}
    loss = machine.evaluate((features, labels))
    expected = torch.nn.functional.cross_entropy(
        peer(torch.from_numpy(features)), torch.from_numpy(labels).long()
    )
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, value in before.items():
        np.testing.assert_array_equal(machine.state[name], value)


def test_a_checkpoint_has_the_state_and_no_optimizers_slot_for_it(tmp_path, peer):
    plan = machine_of(tmp_path, peer, "float32", STREAMING).plan
    names = [name for name in state_layout(plan) if "first" in name]
    assert sorted(names) == [
        "first/beta",
        "first/gamma",
        "first/running_mean",
        "first/running_var",
        "momentum/first/beta",
        "momentum/first/gamma",
    ]


def test_a_loss_that_is_no_number_leaves_the_state_as_it_was(tmp_path):
    options = options_of(PIPELINED, RunMode.TRAIN, group_bytes=400)
    executable = compile_model(module(RunMode.TRAIN, "float32"), tmp_path, options).executable
    _, features, labels = next(batches("float32", np.random.default_rng(2)))
    features[0, 0, 0, 0] = np.nan
    machine = CpuMachine(executable, ArrayData([(features, labels)]), RunSettings(seed=1), 0)
    before = {name: value.copy() for name, value in machine.state.items()}
    assert np.isnan(machine.run(StepOrder(0, 1)).bad_loss)
    for name, value in before.items():
        np.testing.assert_array_equal(machine.state[name], value)


def test_minibatches_are_refused_in_training_alone(tmp_path):
    options = options_of(PIPELINED, RunMode.TRAIN, minibatches_in_flight=2)
    expected = (
        r"^\S*test_batch_norm\.py:\d+: the loss must be .* "
        r"\(layer first: native_batch_norm mixes the samples .*by_mini"
    )
    with pytest.raises(CompileError, match=expected):
        compile_model(module(RunMode.TRAIN, "float32", B // 2), tmp_path, options)
    options = options_of(PIPELINED, RunMode.EVAL, minibatches_in_flight=2)
    compile_model(module(RunMode.EVAL, "float32", B // 2), tmp_path, options)


def test_a_state_that_no_loss_depends_on_is_not_of_minibatches_either(tmp_path):
    with Tracer("float32") as tracer:
        x = nn.Dense(3)(tracer.input("features", (4, 5), "float32"))
        labels = tracer.input("labels", (4,), "int32")
        nn.BatchNorm(name="beside")(x)
        loss = nn.softmax_cross_entropy(x, labels)
        traced = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.1).minimize(loss), [])
    options = options_of(PIPELINED, RunMode.TRAIN, minibatches_in_flight=2)
    with pytest.raises(
        CompileError, match=r": state beside/running_mean must be .* \(layer beside: "
    ):
        compile_model(traced, tmp_path, options)
