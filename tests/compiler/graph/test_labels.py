"""Range checks of labels used as scatter or lookup indices."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import record  # noqa: E402
from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.errors import CsrunError  # noqa: E402
from csrun.cirh.algorithms import SgdAttr  # noqa: E402
from csrun.compiler.graph.labels import number_ranges  # noqa: E402
from csrun.executable import NumberRange  # noqa: E402
from csrun.pytorch.lower.to_cirh import module_of  # noqa: E402

TAKING_LABELS = {
    "one_hot": lambda x, y: x * f.one_hot(y, 5),
    "scatter": lambda x, y: x * torch.zeros(6, 5).scatter(1, y[:, None], 2.0),
    "scatter_add": lambda x, y: x.scatter_add(1, y[:, None], x[:, :1]),
    "gather": lambda x, y: x.gather(1, y[:, None]),
    "embedding": lambda x, y: f.embedding(y, x[:5]),
}


class Model(nn.Linear):
    def __init__(self, function):
        super().__init__(4, 5)
        self.function = function

    def forward(self, x, y):
        return self.function(super().forward(x), y)


def step(model, batch):
    model.zero_grad()
    loss = model(*batch).sum()
    loss.backward()
    return loss


@pytest.mark.parametrize("what", TAKING_LABELS)
def test_labels_are_checked_wherever_they_are_places(what):
    model, batch = Model(TAKING_LABELS[what]), (torch.randn(6, 4), torch.arange(6) % 5)
    recording = record(model, batch, step)
    module = module_of(recording, dict.fromkeys(("weight", "bias"), SgdAttr.of(0.1)))
    (ranges,) = number_ranges(list(module.walk())).values()
    assert ranges == [NumberRange(5)]


@pytest.mark.parametrize(
    ("criterion", "settings", "said"),
    [
        (lambda x, y: x * f.one_hot(y, 4), {}, r"batch 4, row 1 \(sample 33 .*0\.\.3.*got 7"),
        (
            lambda x, y: x * f.one_hot(y, 4),
            {"micro_batch_size": 4},
            r"batch 4, row 1 \(sample 33 .*0\.\.3.*got 7",
        ),
        (
            lambda x, y: x * f.one_hot(y.clamp(max=3) - 1, 4),
            {},
            r"computed index -1 is out of range 0\.\.3",
        ),
    ],
    ids=["of the data", "in micro-batches", "computed"],
)
def test_a_label_that_is_no_class_is_refused(tmp_path, criterion, settings, said):
    kit = Kit()
    kit.train.dataset.tensors[1][33] = 7
    kit.criterion = lambda x, y: criterion(x, y).mean()
    with pytest.raises(CsrunError, match=said), kit.session(tmp_path, **settings):
        kit.train_once()
