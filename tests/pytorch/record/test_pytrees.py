"""Containers returned by forward: user-defined dataclasses and dicts."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Named(OrderedDict):
    def __getattr__(self, name):
        return self[name]


@dataclass
class OldOutput(OrderedDict):
    """Both dataclass and dict, as an early ModelOutput of transformers."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __post_init__(self):
        for name in ("loss", "logits"):
            super().__setitem__(name, getattr(self, name))


class Giving(nn.Module):
    """Network that computes its loss and returns it by name."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = nn.Linear(6, 4), kind

    def forward(self, x, y):
        logits = self.inner(x)
        return self.kind(loss=f.cross_entropy(logits, y), logits=logits)


@pytest.mark.parametrize("kind", [Output, Named, OldOutput, dict], ids=lambda kind: kind.__name__)
def test_forward_gives_a_dataclass_or_a_dict_of_its_own(tmp_path, kind):
    def loop(kit):
        found, (model,) = [], kit.model
        for x, y in kit.train:
            kit.optimizer.zero_grad()
            out = kit.model(x, y)
            loss, logits = (out["loss"], out["logits"]) if kind is dict else (out.loss, out.logits)
            assert type(out) is kind
            loss.backward()
            kit.optimizer.step()
            found += [loss.item(), logits.argmax(1).sum().item()]
        assert model.kind is kind
        return found

    class Kept(Kit):
        def __init__(self):
            super().__init__(Giving(kind))
            self.model.forward = lambda *given: self.model[0](*given)

    beside(loop, tmp_path, kit=Kept)
