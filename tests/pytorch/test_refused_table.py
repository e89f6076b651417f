"""The table of what is refused, in docs/pytorch.md: each row is provoked, and says what it says."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import record  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from csrun.cirh.algorithms import SgdAttr  # noqa: E402
from csrun.pytorch.capture import CaptureError  # noqa: E402
from csrun.pytorch.graph.importing import module_of  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs/pytorch.md"
OTHER = torch.ones(40, requires_grad=True)


def branches(x):
    return x * 2 if x.sum() > 0 else x


#: By the first column of the table.
PROVOKED = {
    "`torch.randn(...)` in forward": lambda x: x + torch.randn(6, 40),
    "`if x.sum() > 0:`, `.item()` in forward": branches,
    "`x[x > 0]`, `x.unique()`": lambda x: x[x > 0].sum() + x,
    "`.half()`, `.bfloat16()`, autocast": lambda x: x.half().float(),
    "`.to(device)`": lambda x: x + torch.ones(40, device="meta"),
    "a weight outside of the model": lambda x: x * OTHER,
    "checkpointing of dropout": lambda x: checkpoint(f.dropout, x, use_reentrant=False),
    "`nn.AlphaDropout`": nn.AlphaDropout(0.5),
    "`sort`, `topk` of more than 32": lambda x: x.sort(1).values,
    "`cumsum` over more than 2,048": lambda x: x.repeat(1, 60).cumsum(1)[:, :40],
    "an `InstanceNorm` with running statistics": lambda x: nn.InstanceNorm1d(
        6, track_running_stats=True
    )(x[None])[0],
    "`kthvalue`, and others without an emitter": lambda x: x.kthvalue(2, keepdim=True).values * x,
}


class Model(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.linear, self.then = nn.Linear(4, 40), [then]

    def forward(self, x):
        return self.then[0](self.linear(x))


def step(model, batch):
    model.zero_grad()
    loss = f.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    return loss


def rows():
    """First column to second."""
    section = PAGE.read_text().partition("## What is refused")[2].partition("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if " | " in line]
    return {row[0]: row[1] for row in found[1:]}


def test_each_row_is_provoked():
    assert list(rows()) == list(PROVOKED)


@pytest.mark.parametrize("what", PROVOKED)
def test_a_row_has_the_message(what):
    model, batch = Model(PROVOKED[what]), (torch.randn(6, 4), torch.arange(6))
    with pytest.raises(CaptureError) as error:
        module_of(
            record(model, batch, step),
            dict.fromkeys([name for name, _ in model.named_parameters()], SgdAttr.of(0.1)),
        )
    assert re.match(r".*\.py:\d+: ", str(error.value)), "it names the line"
    assert rows()[what].strip("`") in str(error.value)
