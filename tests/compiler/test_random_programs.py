"""Seeded random programs of csrun.nn against PyTorch: modes, minibatches, padding, updates.

Programs in float32 run in NumPy and in machine code with several thread counts, with equal bits.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest
from support.random_programs.draw import random_program
from support.random_programs.functions import Ours, Theirs
from support.random_programs.program import CLASSES, FEATURES, TOKENS, minimized
from support.steps import Case, Training, parameters_of

from csrun import nn
from csrun.base.mode import ExecutionMode
from csrun.executable import machine_code

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the programs")

SIZE = 12  # samples of a batch
QUICK, SLOW = 20, 115  # programs of a test
SINGLE = 5  # one of so many is of float32
RTOL = {"float64": 1e-8, "float32": 2e-3}
ATOL = {"float64": 1e-9, "float32": 1e-3}


@pytest.fixture(autouse=True)
def _no_texts(no_texts):
    """Skip the texts of hundreds of compiles."""


#: Whose epsilon keeps the rounding of gradients that are 0 from becoming updates.
OPTIMIZERS = {
    "SGD": (nn.SGD(0.01, 0.9, nesterov=True), {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
    "Adam": (nn.Adam(0.01, epsilon=0.1), {"lr": 0.01, "eps": 0.1}),
    "AdamW": (
        nn.AdamW(0.01, epsilon=0.1, weight_decay=0.1),
        {"lr": 0.01, "eps": 0.1, "weight_decay": 0.1},
    ),
    "RMSprop": (nn.RMSProp(0.01, 0.9, 0.1), {"lr": 0.01, "alpha": 0.9, "eps": 0.1}),
}


@dataclass(frozen=True)
class Form:
    """Kernels, matrix products and threads of a program."""

    kernels: str = "numpy"
    products: str = "own"
    threads: int = 1


NUMPY = Form()
FORMS = [Form("llvm", threads=2), Form("llvm", "blas", 2), Form("llvm", threads=3), NUMPY]


@dataclass(frozen=True)
class Way:
    """Run configuration of a program, drawn from its seed."""

    mode: ExecutionMode
    minibatches: int
    rows: tuple[int, ...]  # the valid ones of each step
    precision: str
    optimizer: str
    form: Form

    def __str__(self):
        return (
            f"{self.mode}, {self.minibatches} minibatches, {' + '.join(map(str, self.rows))} rows, "
            f"{self.optimizer}, {self.precision}, {self.form}"
        )


def way_of(program):
    """Draw a configuration; batches with batch norm are not split, and have several samples."""
    random = np.random.default_rng(program.seed)
    is_normalized = bool(program.numbers_of("batch_norm"))
    minibatches = int(random.choice([1, 2, 3, 4]))
    minibatches = 1 if is_normalized else minibatches
    streamed = program.seed % 2 and minibatches == 1
    precision = "float32" if program.seed % SINGLE == 0 else "float64"
    # rounding of single precision grows from step to step
    steps = 3 if precision == "float64" and random.integers(3) == 0 else 1
    rows = tuple(int(n) for n in random.integers(1 + is_normalized, SIZE + 1, steps))
    mode = ExecutionMode.WEIGHT_STREAMING if streamed else ExecutionMode.PIPELINED
    kinds = list(OPTIMIZERS)[: 1 if precision == "float32" else None]  # the others divide by noise
    form = NUMPY
    if precision == "float32" and machine_code.is_supported():
        form = FORMS[program.seed // SINGLE % len(FORMS)]
    return Way(mode, minibatches, rows, precision, str(random.choice(kinds)), form)


def batch_of(program, way, index):
    random = np.random.default_rng((program.seed, index))
    rows = way.rows[index]
    features = random.standard_normal((rows, FEATURES)).astype(way.precision)
    return features, random.integers(0, CLASSES, (rows, TOKENS)).astype(np.int32)


def complaint(program, root):
    """First mismatch with PyTorch on the valid samples of some steps, or ''."""
    way = way_of(program)
    try:
        return next((f"{way}: {name} differs" for name in differences(program, way, root)), "")
    except Exception as error:
        return f"{way}: {error!r}"


def differences(program, way, root):
    """Differences of each step's loss and outputs, and of the gradients and state after it."""
    model = lambda x, y: program.run(Ours(), x, y)  # noqa: E731
    optimizer, options = OPTIMIZERS[way.optimizer]
    how = {"precision": way.precision, "optimizer": optimizer}
    case = Case(model, batch_of(program, way, 0), way.minibatches, SIZE, way.mode, **how)
    form = way.form
    executable = case.compile(root, kernels=form.kernels, products=form.products)
    training = Training(executable, threads=form.threads)
    by_one = Training(executable) if form.kernels == "llvm" else None
    exact = {n: v.astype("float64") for n, v in parameters_of(training.plan).items()}
    peer = Theirs(torch, exact)
    trained = [tensor for tensor in peer.tensors.values() if tensor.requires_grad]
    updates = getattr(torch.optim, way.optimizer)(trained, **options)
    tolerance = {"rtol": RTOL[way.precision], "atol": ATOL[way.precision], "equal_nan": True}
    for index in range(len(way.rows)):
        batch = batch_of(program, way, index)
        stepped = training.step(batch, index)
        if by_one is not None:
            yield from changed_bits(stepped, by_one.step(batch, index))
        theirs = peer_step(program, peer, updates, batch, stepped.result.outputs)
        ours = {"loss": np.asarray(stepped.result.loss), **stepped.result.outputs}
        ours |= {f"{name}'s gradient": value for name, value in stepped.gradients.items()}
        ours |= {f"{name} after it": training.state[name] for name in peer.tensors}
        for name in theirs:
            is_alike = ours[name].shape == theirs[name].shape
            if not is_alike or not np.allclose(ours[name], theirs[name], **tolerance):
                yield f"{name} in step {index}"


def changed_bits(stepped, other):
    """Names of a step's values whose bits differ between two results."""
    found, wanted = (
        {"loss": s.result.loss, **s.result.outputs, **s.gradients} for s in (stepped, other)
    )
    for name, value in wanted.items():
        if not np.array_equal(found[name], value, equal_nan=True):
            yield f"{name} of several threads"


def peer_step(program, peer, updates, batch, outputs):
    """PyTorch's values of a step by name, with the dropout masks of our outputs."""
    for number in program.numbers_of("dropout"):
        kept = torch.tensor(outputs[f"v{number}"] != 0).double()
        peer.masks[number] = kept / (1 - program.statements[number].options[0])
    features, labels = (torch.tensor(array) for array in batch)
    updates.zero_grad()
    loss, values = program.run(peer, features.double(), labels)
    loss.backward()
    trained = {name: tensor for name, tensor in peer.tensors.items() if tensor.requires_grad}
    found = {"loss": loss, **values}
    found |= {f"{name}'s gradient": tensor.grad for name, tensor in trained.items()}
    updates.step()
    found |= {f"{name} after it": tensor for name, tensor in peer.tensors.items()}
    return {name: value.detach().numpy() for name, value in found.items()}


def kind_of(found):
    """Class of an error, or of a mismatch: a reduced program must fail in the same way."""
    return "differs" if found.endswith("differs") else found.partition("(")[0].rpartition(": ")[2]


def check(seeds, root):
    folders = (root / str(number) for number in count())

    def of(program):
        return complaint(program, next(folders))

    for program in map(random_program, seeds):
        if found := of(program):
            kind = kind_of(found)
            least = minimized(program, lambda smaller: kind_of(of(smaller)) == kind)  # noqa: B023
            pytest.fail(f"{found}\n{program}\nminimized: {of(least)}\n{least}")


def test_random_programs_give_what_pytorch_gives(tmp_path):
    check(range(QUICK), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, 250, SLOW))
def test_more_random_programs_give_what_pytorch_gives(tmp_path, first):
    check(range(first, first + SLOW), tmp_path)
