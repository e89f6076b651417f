"""The table of what is refused, in docs/pytorch.md: each row is provoked, or is in the code."""

import ast
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import record  # noqa: E402
from support.refusals import (  # noqa: E402
    IN_FORWARD,
    IN_LOOP,
    OPTIMIZERS,
    Model,
    Script,
    messages_of_the_page,
)
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.cirh.algorithms import SgdAttr  # noqa: E402
from csrun.pytorch.errors import CaptureError  # noqa: E402
from csrun.pytorch.lower.to_cirh import module_of  # noqa: E402
from csrun.pytorch.optimizers import Optimization  # noqa: E402

CODE = Path(__file__).parents[2] / "csrun"
WRAPPED = "a model in another wrapper than those of `torch.compile` and `DataParallel`"


def step(model, batch):
    model.zero_grad()
    loss = f.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    return loss


def messages(source):
    """The texts of a module, with {} for each value in them."""
    nodes = list(ast.walk(ast.parse(source)))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    for node in joined:
        yield "".join(getattr(part, "value", 0) if _is_text(part) else "{}" for part in node.values)
    parts = {id(part) for node in joined for part in node.values}
    yield from (node.value for node in nodes if _is_text(node) and id(node) not in parts)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def require_message(what, error):
    assert re.match(r".*\.py:\d+: ", str(error)), "it names the line"
    assert messages_of_the_page()[what] in str(error)


def test_each_row_is_provoked_or_has_a_message_of_the_code():
    """What the other tests of this folder provoke has its words here once more."""
    found, provoked = messages_of_the_page(), {*IN_FORWARD, *OPTIMIZERS, *IN_LOOP, WRAPPED}
    assert provoked <= found.keys()
    code = [text for path in CODE.rglob("*.py") for text in messages(path.read_text())]
    others = [row for row in found.items() if row[0] not in provoked]
    assert [row for row in others if not any(row[1] in text for text in code)] == []


@pytest.mark.parametrize("what", IN_FORWARD)
def test_a_row_of_forward_has_the_message(what):
    then = IN_FORWARD[what]
    model, batch = Model(then), (torch.randn(6, 4), torch.arange(6))
    if isinstance(then, nn.Embedding):
        model.table, model.then = then, [lambda x: x * then(batch[1])]
    with pytest.raises(CaptureError) as error:
        module_of(
            record(model, batch, step),
            dict.fromkeys([name for name, _ in model.named_parameters()], SgdAttr.of(0.1)),
        )
    require_message(what, error.value)


@pytest.mark.parametrize("what", OPTIMIZERS)
def test_a_row_of_optimizers_has_the_message(what):
    model = nn.Linear(2, 2)
    with pytest.raises(UsageError) as error:
        Optimization(OPTIMIZERS[what](model.parameters()), model).algorithms()
    require_message(what, error.value)


@pytest.mark.parametrize("what", IN_LOOP)
def test_a_row_of_the_loop_has_the_message(tmp_path, what):
    with pytest.raises(UsageError) as error:
        Script().run(tmp_path, IN_LOOP[what])
    require_message(what, error.value)


def test_a_wrapped_model_has_the_message():
    with pytest.raises(UsageError) as error:
        cbtorch.Session(nn.DataParallel(nn.Linear(2, 2)), None, mode="eval")
    require_message(WRAPPED, error.value)
