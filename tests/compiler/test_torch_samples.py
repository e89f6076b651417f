"""PyTorch's own samples of its operators and optimizers, compiled and in the reference interpreter.

Operands are inputs, activations, parameters and views of them; forward and backward passes are
within the tolerances of PyTorch's own tests. The table is support/samples/table.py.
"""

from itertools import islice

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch has the samples")

from support.programs import Machine, Network  # noqa: E402
from support.samples.check import Outcome, check_row, traceable  # noqa: E402
from support.samples.database import optimizers  # noqa: E402
from support.samples.learning import OPTIMIZERS  # noqa: E402
from support.samples.row import Noted, Skipped  # noqa: E402
from support.samples.running import compare  # noqa: E402
from support.samples.table import (  # noqa: E402
    FUNCTIONS,
    OPTIONS,
    REFUSED,
    ROWS,
    SAMPLES,
)

from csrun import nn  # noqa: E402
from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.cirh.reference import ModuleState, interpret  # noqa: E402
from csrun.compiler.passes import run_passes  # noqa: E402

ALL = 8  # in a slow one, in every way: as many as one program has
MOST = 2  # samples of an element type that are computed in a quick test
TABLE = "tests/support/samples/table.py"


@pytest.fixture(autouse=True)
def _quick_compiles(no_texts, quick_builds):
    """Skip texts and optimization of hundreds of compiles; test_operators.py optimizes."""


def check(row, root, most, every):
    outcome = check_row(row, root, most, every, Noted())
    assert not outcome.wrong, f"{len(outcome.wrong)} wrong:\n" + "\n".join(outcome.wrong[:10])
    not_met = {key for key in (*SAMPLES, *REFUSED) if key[0] == str(row)} - outcome.met
    assert not not_met, f"not needed any more, take it out of {TABLE}: {not_met}"


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_samples_give_what_pytorch_gives(tmp_path, row):
    check(row, tmp_path, MOST, every=False)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_all_samples_give_what_pytorch_gives(tmp_path, row):
    check(row, tmp_path, ALL, every=True)


def updates(name, noted):
    """csrun's counterpart of an optimizer of PyTorch's samples, with each supported option."""
    found, skipped = [], set()
    for sample in optimizers()[name].optim_inputs_func(device="cpu"):
        options = {k: float(v) if k == "lr" else v for k, v in sample.kwargs.items()}
        try:
            found.append((options, OPTIMIZERS[name](noted, **options)))
        except Skipped as reason:
            skipped.add(str(reason))
    return found, skipped


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_match_pytorch(tmp_path, name, precision):
    """With equal gradients, by the compiled program and by the reference interpreter."""
    for options, optimizer in updates(name, Noted())[0]:
        network = Network(sizes=(4, 3, 2), batch=4, precision=precision, optimizer=optimizer)
        executable = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 100)
        module, first = network.trace(), network.parameters()
        run_passes(module)
        machine, state = Machine(executable, first), ModuleState(dict(first))
        tensors = {n: torch.from_numpy(v.copy()).requires_grad_() for n, v in first.items()}
        peer = optimizers()[name].optim_cls(list(tensors.values()), **options)
        for step, batch in enumerate(network.batches(3)):
            _, gradients = machine.train(batch)
            inputs = dict(zip(("features", "labels"), batch, strict=True))
            interpreted = interpret(module, inputs, state, len(batch[0])).gradients
            for parameter, tensor in tensors.items():
                compare(interpreted[parameter], torch.from_numpy(gradients[parameter]), {})
                tensor.grad = torch.from_numpy(gradients[parameter])
            peer.step()
            for parameter, tensor in tensors.items():
                for ours in (machine.state[parameter], state.parameters[parameter]):
                    compare(np.array(ours), tensor.detach(), {})
            assert step < 3, options


def test_every_option_of_the_optimizers_is_csruns_or_skipped():
    skipped = set().union(*(updates(name, Noted())[1] for name in OPTIMIZERS))
    assert skipped == set(OPTIONS), f"OPTIONS of {TABLE}"


def test_every_public_name_is_in_a_row_or_skipped():
    noted = Noted()
    for row in ROWS:
        dtype = (*row.floats, *row.dtypes)[0]
        for _ in islice(traceable(row, dtype, noted, Outcome()), MOST):
            pass
    for name in OPTIMIZERS:
        updates(name, noted)
    missing = sorted(set(nn.__all__) - noted.used - set(FUNCTIONS))
    assert not missing, (
        f"{', '.join(missing)}: add a row to a file of tests/support/samples with PyTorch's "
        f"operator and the same in csrun, or a reason to FUNCTIONS of {TABLE}"
    )
    superfluous = sorted(set(FUNCTIONS) & noted.used | set(FUNCTIONS) - set(nn.__all__))
    assert not superfluous, f"take {', '.join(superfluous)} out of FUNCTIONS of {TABLE}"


def test_every_skip_is_of_a_row_and_has_a_reason():
    rows = set(map(str, ROWS))
    assert len(rows) == len(ROWS)
    assert {key[0] for key in (*SAMPLES, *REFUSED)} <= rows
    tables = (FUNCTIONS, SAMPLES, REFUSED, OPTIONS)
    assert all(reason for table in tables for reason in table.values())
