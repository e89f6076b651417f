"""Arithmetic in a model outside of layers, and losses as values, against PyTorch."""

import numpy as np
import pytest
from support.programs import Machine, options_of, step_of

from csrun import nn
from csrun.base.mode import ExecutionMode, RunMode
from csrun.cirh.ops.loss import IGNORE_INDEX
from csrun.compiler import CompileError, compile_model
from csrun.compiler.lair import Generated
from csrun.compiler.matching import match_kernels
from csrun.compiler.passes import run_passes
from csrun.executable import Runtime, state_views, wafer_views
from csrun.nn.tracer import Tracer
from csrun.runtime.step.engine import make_compute
from csrun.runtime.step.placed_program import PlacedProgram
from csrun.runtime.step.results import ResultSlots, result_slot_bytes

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the arithmetic")
pytestmark = pytest.mark.usefixtures("no_texts")  # compiles of which nobody reads a text

BATCH, IN, HIDDEN, CLASSES = 16, 6, 8, 5


class Ours:
    """Namespace of csrun in which a case is written."""

    relu, gelu, sigmoid = map(staticmethod, (nn.relu, nn.gelu, nn.sigmoid))
    exp, log, sqrt = map(staticmethod, (nn.exp, nn.log, nn.sqrt))
    cross_entropy = staticmethod(nn.softmax_cross_entropy)

    def dense(self, units, x, activation=None):
        return nn.Dense(units, activation)(x)

    def mean(self, x):
        return nn.mean(x, axis=-1, keepdims=True)


class Theirs:
    """Namespace of PyTorch, with parameters by csrun's names."""

    relu, sigmoid = map(staticmethod, (torch.relu, torch.sigmoid))
    gelu = staticmethod(torch.nn.functional.gelu)
    exp, log, sqrt = map(staticmethod, (torch.exp, torch.log, torch.sqrt))

    def __init__(self, parameters):
        self.tensors = {n: torch.tensor(v, requires_grad=True) for n, v in parameters.items()}
        self._layers = iter(n.removesuffix("/kernel") for n in parameters if "kernel" in n)

    def dense(self, units, x, activation=None):
        layer = next(self._layers)
        y = x @ self.tensors[f"{layer}/kernel"] + self.tensors[f"{layer}/bias"]
        return y if activation is None else getattr(torch, activation)(y)

    def mean(self, x):
        return x.mean(-1, keepdim=True)

    def cross_entropy(self, logits, labels):
        return torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX)


def scaled(f, x, labels):
    loss = f.cross_entropy(f.dense(CLASSES, f.dense(HIDDEN, x, "relu") * 2.0), labels)
    return loss * 0.5, {"plain": loss, "twice": loss * 2.0}


def residual(f, x, labels):
    h = f.dense(HIDDEN, x, "relu")
    h = h + f.dense(HIDDEN, h)
    h = h + f.dense(HIDDEN, h, "relu")
    loss = f.cross_entropy(f.dense(CLASSES, h), labels)
    return loss, {"loss": loss, "h": h, "sum": h + h}


def two_branches(f, x, labels):
    h = f.dense(HIDDEN, x)
    y = f.relu(f.dense(HIDDEN, h) - f.dense(HIDDEN, h) / 3.0)
    loss = f.cross_entropy(f.dense(CLASSES, y * f.sigmoid(h)), labels)
    return loss, {"y": -y, "loss": loss}


def two_losses(f, x, labels):
    h = f.dense(HIDDEN, x, "tanh")
    first = f.cross_entropy(f.dense(CLASSES, h), labels)
    second = f.cross_entropy(f.dense(CLASSES + 2, h), labels)
    return first + 0.3 * second, {"first": first, "second": second}


def activations_of_two_shapes(f, x, labels):
    h = f.gelu(f.gelu(f.dense(HIDDEN, x)))
    logits = f.gelu(f.gelu(f.dense(CLASSES, h)))
    return f.cross_entropy(logits, labels), {"logits": logits}


def own_activation(f, x, labels):
    h = f.dense(HIDDEN, x)
    y = h * f.sigmoid(1.702 * h)
    z = y / f.mean(y)
    return f.cross_entropy(f.dense(CLASSES, z), labels), {"z": z, "of_rows": f.mean(y) + 1.0}


def row_norm(f, x, labels):
    h = f.dense(HIDDEN, x, "tanh")
    centred = h - f.mean(h)
    z = centred / f.sqrt(f.mean(centred * centred) + 1e-3)
    logits = f.dense(CLASSES, f.exp(-z) + h)
    return f.cross_entropy(logits, labels), {"z": z, "log": f.log(f.exp(z) + 1.0)}


def loss_over_loss(f, x, labels):
    logits = f.dense(CLASSES, f.dense(HIDDEN, x, "relu"))
    loss = f.cross_entropy(logits, labels)
    return loss * loss, {"of_loss": logits * loss}


LINEAR = (
    scaled, residual, two_branches, two_losses, activations_of_two_shapes, own_activation, row_norm
)  # fmt: skip


def trace(case, batch, run_mode=RunMode.TRAIN):
    with Tracer("float64") as tracer:
        x = tracer.input("features", (batch, IN), "float64")
        labels = tracer.input("labels", (batch,), "int32")
        loss, outputs = case(Ours(), x, labels)
        return tracer.finish(run_mode, loss, nn.SGD(0.1).minimize(loss), list(outputs.items()))


def compiled(case, root, minibatches=1, mode=ExecutionMode.PIPELINED, run_mode=RunMode.TRAIN):
    options = options_of(mode, run_mode, minibatches_in_flight=minibatches, group_bytes=300)
    return compile_model(trace(case, BATCH // minibatches, run_mode), root, options).executable


def parameters_of(plan):
    random = np.random.default_rng(4)
    return {p.name: random.standard_normal(p.shape) / 2 for p in plan.parameters}


def batch_of(rows):
    random = np.random.default_rng(6)
    labels = random.integers(0, CLASSES, BATCH).astype(np.int32)
    labels[rows:] = IGNORE_INDEX
    return random.standard_normal((BATCH, IN)), labels


def expected(case, parameters, batch):
    peer = Theirs(parameters)
    loss, outputs = case(peer, torch.tensor(batch[0]), torch.tensor(batch[1]).long())
    loss.backward()
    gradients = {name: tensor.grad.numpy() for name, tensor in peer.tensors.items()}
    return loss.item(), gradients, {name: v.detach().numpy() for name, v in outputs.items()}


@pytest.mark.parametrize("tile_bytes", [1, 3000, 1 << 20])  # one row, some, all of them
@pytest.mark.parametrize("mode", ExecutionMode)
@pytest.mark.parametrize("case", [*LINEAR, loss_over_loss])
def test_a_training_step_is_pytorchs(tmp_path, monkeypatch, case, mode, tile_bytes):
    monkeypatch.setattr("csrun.compiler.lair.loop.TILE_BYTES", tile_bytes)
    executable = compiled(case, tmp_path, mode=mode)
    parameters, batch = parameters_of(executable.plan), batch_of(BATCH - 5)
    machine = Machine(executable, parameters)
    their_loss, their_gradients, their_outputs = expected(case, parameters, batch)
    loss, gradients = machine.train(batch)
    assert loss == pytest.approx(their_loss, rel=1e-12)
    for name, theirs in their_gradients.items():
        np.testing.assert_allclose(gradients[name], theirs, rtol=1e-9, atol=1e-12, err_msg=name)
    for name, theirs in their_outputs.items():
        np.testing.assert_allclose(machine.output(name), theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("run_mode", [RunMode.TRAIN, RunMode.EVAL])
@pytest.mark.parametrize("minibatches", [1, 4])
@pytest.mark.parametrize("case", LINEAR)
def test_losses_as_outputs_are_those_of_the_whole_batch(tmp_path, case, minibatches, run_mode):
    plan = (executable := compiled(case, tmp_path, minibatches, run_mode=run_mode)).plan
    parameters, batch = parameters_of(plan), batch_of(rows := BATCH - 5)
    arena = np.full(plan.arena_bytes, 0xFF, np.uint8)
    store = arena[: plan.store.nbytes]
    for name, array in state_views(plan, store).items():
        array[...] = parameters[name]
    compute = make_compute(PlacedProgram(executable, arena, store, Runtime(5)), Unmoved())
    loss = compute.run(batch, step_of(plan, batch, rows))
    slots = ResultSlots(plan, np.zeros(result_slot_bytes(plan), np.uint8))
    slots.record(0, loss, rows, rows)
    slots.record_outputs(0, compute.outputs)
    their_loss, their_gradients, their_outputs = expected(case, parameters, batch)
    assert loss / rows == pytest.approx(their_loss, rel=1e-12)
    for name, ours in slots.read(0, 0).outputs.items():
        theirs = their_outputs[name]
        theirs = theirs[:rows] if theirs.ndim else theirs
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=name)
    views = wafer_views(plan, arena, store)
    for name, theirs in their_gradients.items() if run_mode is RunMode.TRAIN else ():
        np.testing.assert_allclose(views[f"gradient:{name}"], theirs, rtol=1e-9, atol=1e-12)


def test_what_no_minibatch_knows_its_part_of_is_refused(tmp_path):
    remedy = "set minibatches_in_flight to 1 and multireplica to false"
    with pytest.raises(CompileError, match=rf"\.py:\d+: the loss .* 4 minibatches: {remedy}"):
        compiled(loss_over_loss, tmp_path, 4)


def test_a_value_as_large_as_the_batch_is_not_one_of_each_sample(tmp_path):
    """Weights with BATCH rows are shared by all samples, whatever their first axis."""

    def case(f, x, labels):
        logits = f.dense(CLASSES, f.dense(BATCH, x))
        return f.cross_entropy(logits, labels), {"logits": logits}

    module = trace(case, BATCH)
    kernel = next(op for op in module.ops if op.name == "cirh.parameter" and _rows(op) == BATCH)
    output = next(op for op in module.ops if op.name == "cirh.output")
    output.operands[0] = kernel.results[0]
    (only,) = compile_model(module, tmp_path, options_of()).executable.plan.outputs
    assert only.combine == "first"


def _rows(parameter):
    return parameter.results[0].type.get_shape()[0]


class Unmoved:
    """Optimizer that leaves weights unchanged."""

    def enter(self, visit):
        pass

    def deliver(self, group, step):
        pass


def test_a_program_computes_on_floats_and_on_integers(tmp_path):
    """Each constant has a single type in the whole program."""
    with Tracer("float32") as tracer:
        x = tracer.input("x", (BATCH, IN), "float32")
        labels = tracer.input("labels", (BATCH,), "int64")
        loss = nn.sum(nn.relu(nn.Dense(HIDDEN, use_bias=False)(x)), axis=(0, 1))
        train_op = nn.SGD(0.0).minimize(loss)
        module = tracer.finish(RunMode.TRAIN, loss, train_op, [("sign", nn.sign(labels - 2))])
    run_passes(module)
    kernels = match_kernels(module).kernels
    constants = [k.loop.text.constants for k in kernels if isinstance(k, Generated)]
    names = [(name, text) for each in constants for name, text in each.items()]
    assert len(dict(names)) == len(set(names)) > 2


@pytest.mark.parametrize("function", [nn.relu, nn.relu6, nn.gelu])
def test_the_gradient_that_comes_back_is_a_number(tmp_path, function):
    """The loss is a sum, so that the gradient of each activation is 1."""
    weights = np.random.default_rng(3).normal(0, 4, (BATCH, IN)).astype(np.float32)
    with Tracer("float32") as tracer:
        x = tracer.input("x", (BATCH,), "float32")
        tracer.input("labels", (BATCH,), "int32")
        with tracer.layer("table", "table"):
            w = tracer.parameter("w", weights.shape, nn.initializers.zeros(weights.shape))
        loss = nn.sum(function(w), axis=(0, 1)) + nn.sum(x * 0.0, axis=0)
        module = tracer.finish(RunMode.TRAIN, loss, nn.SGD(0.0).minimize(loss), [])
    executable = compile_model(module, tmp_path, options_of()).executable
    machine = Machine(executable, {"table/w": weights})
    _, gradients = machine.train((np.zeros(BATCH, np.float32), np.zeros(BATCH, np.int32)))
    leaf = torch.from_numpy(weights).requires_grad_()
    getattr(torch.nn.functional, function.__name__)(leaf).sum().backward()
    np.testing.assert_allclose(gradients["table/w"], leaf.grad, rtol=1e-5, atol=1e-6)
