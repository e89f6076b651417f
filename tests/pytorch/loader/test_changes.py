"""Data sets changed by the loop between passes: PyTorch's losses, or a refusal."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402
from csrun.data import DataError  # noqa: E402
from csrun.pytorch.loader import DataChanges  # noqa: E402

SAMPLES, BATCH, PASSES = 24, 4, 3


class Data(Dataset):
    """Samples scaled by everything that the loop may change."""

    of_class = 1.0

    def __init__(self):
        self.scale, self.factors = 1.0, [1.0, 2.0]
        self.tensor, self.array = torch.ones(SAMPLES), np.ones(SAMPLES, np.float32)
        self.pair = (torch.ones(1), "a")
        self.options = {"shift": 0.0}
        self.cache, self.count = {}, 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.cache[index] = self.count = self.count + 1
        factor = self.scale * self.factors[0] * self.of_class * float(self.array[index])
        x = torch.tensor([float(index)]) * factor * self.tensor[index] * self.pair[0]
        return (x + self.options["shift"],)


def rebind_class_attribute(data, n):
    Data.of_class = n


CHANGES = {
    "number": lambda data, n: setattr(data, "scale", n),
    "class attribute": rebind_class_attribute,
    "item of a list": lambda data, n: data.factors.__setitem__(0, n),
    "item of a dict": lambda data, n: data.options.update(shift=n),
    "tensor in place": lambda data, n: data.tensor.fill_(n),
    "tensor": lambda data, n: setattr(data, "tensor", torch.full((SAMPLES,), n)),
    "array in place": lambda data, n: data.array.fill(n),
    "tensor of a tuple in place": lambda data, n: data.pair[0].fill_(n),
    "tuple": lambda data, n: setattr(data, "pair", (torch.full((1,), n), "b")),
    "list": lambda data, n: setattr(data, "factors", [n]),
}


@pytest.fixture(autouse=True)
def _class_as_it_was(monkeypatch):
    monkeypatch.setattr(Data, "of_class", 1.0)


def samples_of(data):
    return [data[index][0].item() for index in range(SAMPLES)]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_patch_brings_a_copy_of_the_start_to_what_the_data_is(change, wrapped, monkeypatch):
    def given(data):
        return Subset(ConcatDataset([data]), range(SAMPLES)) if wrapped else data

    ours, theirs = Data(), Data()
    chief = DataChanges(DataLoader(given(ours), BATCH))
    streamer = DataChanges(DataLoader(given(theirs), BATCH))
    chief.begin()
    assert not chief.found()
    for number in (10.0, 100.0):
        change(ours, number)
        paths = chief.found()
        assert paths
        chief.take(paths, sends=True)
        assert not chief.found()
        expected = samples_of(ours)
        monkeypatch.setattr(Data, "of_class", 1.0)
        streamer.apply(chief.patch)
        assert samples_of(theirs) == expected
        chief.take([], sends=False)


def test_what_the_data_set_itself_writes_is_no_change():
    data = Data()
    changes = DataChanges(DataLoader(data, BATCH))
    changes.begin()
    changes.fetch_batch(lambda: data[0])
    data[1]
    assert not changes.found()
    data.scale = 2.0
    assert [path[-1].key for path in changes.found()] == ["scale"]


def test_a_logger_of_the_data_set_is_no_data():
    """A logger is not compared, though it changes as other loggers are created."""
    data = Data()
    data.logger = logging.getLogger("csrun.test")
    changes = DataChanges(DataLoader(data, BATCH))
    changes.begin()
    logging.getLogger("csrun.test.another").setLevel("ERROR")
    data.logger.setLevel("ERROR")
    assert not changes.found()


def test_what_streamers_cannot_be_told_of_is_refused():
    data = Data()
    changes = DataChanges(DataLoader(data, BATCH))
    changes.begin()
    data.scale = nn.Identity()
    with pytest.raises(DataError, match=r"data set's \.scale has changed.* Identity cannot be"):
        changes.take(changes.found(), sends=True)


def losses(loader, model, change, read):
    """Losses of three passes, with the data changed before each."""
    found, optimizer = [], torch.optim.SGD(model.parameters(), 0.0)

    def loop():
        for epoch in range(PASSES):
            change(10.0**epoch)
            for (x,) in loader:
                optimizer.zero_grad()
                out = model(x)
                loss = out.mean()
                loss.backward()
                optimizer.step()
                found.append(read(loss))

    if isinstance(loader, DataLoader):
        loop()
    else:
        with cbtorch.Session(model, optimizer, None, mode="train"):
            loop()
    return [float(loss) for loss in found]


@pytest.mark.parametrize("read", [torch.Tensor.detach, torch.Tensor.item], ids=["kept", "read"])
@pytest.mark.parametrize("name", ["number", "tensor in place"])
def test_each_pass_has_the_data_of_its_begin(tmp_path, name, read):
    found = []
    for is_ours in (True, False):
        data, model = Data(), nn.Linear(1, 1)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        loader = DataLoader(data, BATCH)
        if is_ours:
            cbtorch.initialize(model_dir=tmp_path)
            model, loader = cbtorch.module(model), cbtorch.dataloader(loader)
        found.append(losses(loader, model, lambda n, data=data: CHANGES[name](data, n), read))
    torch.testing.assert_close(*map(torch.tensor, found))


def test_a_change_amid_a_pass_is_refused(tmp_path):
    data = TensorDataset(torch.arange(24.0).reshape(SAMPLES, 1))
    cbtorch.initialize(model_dir=tmp_path)
    model = cbtorch.module(nn.Linear(1, 1))
    loader = cbtorch.dataloader(DataLoader(data, BATCH))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with (
        pytest.raises(UsageError, match=r"data set's \.tensors\[0\] has changed during a pass"),
        cbtorch.Session(model, optimizer, None, mode="train"),
    ):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            data.tensors[0].mul_(2)
