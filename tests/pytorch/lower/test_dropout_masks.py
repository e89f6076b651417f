"""Dropout in a Session: expected rate, a new mask in each step, and equal masks in each run."""

import copy
import math

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402

STEPS, BATCH, WIDTH, CHANNELS, RATE = 100, 8, 50, 20, 0.25


class Dropping(nn.Module):
    """Layer whose second output is zero exactly where a value was dropped."""

    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.last = (
            nn.Linear(6, WIDTH),
            nn.Dropout(RATE),
            nn.Linear(WIDTH, 4),
        )

    def forward(self, x):
        dropped = self.dropout(self.first(x).tanh() + 2)
        return self.last(dropped), dropped


def trained(folder, **options):
    """Numbers of values dropped in each step, and the final weights."""
    torch.manual_seed(3)
    cbtorch.initialize(model_dir=folder, **options)
    model = cbtorch.module(Dropping())
    optimizer, criterion = optim.SGD(model.parameters(), 0.05), nn.CrossEntropyLoss()
    data = TensorDataset(torch.randn(STEPS * BATCH, 6), torch.randint(4, (STEPS * BATCH,)))
    loader, counts = cbtorch.dataloader(DataLoader(data, BATCH)), []
    with cbtorch.Session(model, optimizer, criterion):
        for x, y in loader:
            optimizer.zero_grad()
            out, dropped = model(x)
            criterion(out, y).backward()
            optimizer.step()
            counts.append((dropped == 0).sum())
        found = torch.stack(counts).tolist()
    return found, {name: value.clone() for name, value in model.state_dict().items()}


def test_the_dropped_share_is_the_rate_and_a_second_run_drops_the_same(tmp_path):
    counts, weights = trained(tmp_path / "one")
    assert len(counts) == STEPS
    values = STEPS * BATCH * WIDTH
    sigma = math.sqrt(values * RATE * (1 - RATE))
    assert abs(sum(counts) - values * RATE) < 3 * sigma
    of_a_step = BATCH * WIDTH * RATE * (1 - RATE)
    variance = sum((count - BATCH * WIDTH * RATE) ** 2 for count in counts) / STEPS
    assert abs(variance / of_a_step - 1) < 3 * math.sqrt(2 / STEPS)  # each step draws its own
    again, weights_again = trained(tmp_path / "two")
    assert again == counts
    assert all(torch.equal(value, weights_again[name]) for name, value in weights.items())
    assert trained(tmp_path / "three", seed=5)[0] != counts


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d], ids=lambda kind: kind.__name__)
def test_micro_batches_drop_what_the_whole_batch_drops(tmp_path, kind):
    found = []
    for micro_batch_size in (8, 2):
        torch.manual_seed(3)
        ours = Kit(nn.Linear(6, 20), nn.Unflatten(1, (10, 2)), kind(0.5), nn.Flatten())
        with ours.session(tmp_path / str(micro_batch_size), micro_batch_size=micro_batch_size):
            found.append([float(loss) for loss in ours.train_once()])
    assert found[0] == pytest.approx(found[1], rel=1e-10)
    assert len(set(found[0])) == len(found[0])


class DroppingChannels(nn.Module):
    """Layer whose second output is zero exactly where a channel was dropped."""

    def __init__(self):
        super().__init__()
        self.first, self.dropout, self.last = (
            nn.Conv2d(1, CHANNELS, 3),
            nn.Dropout2d(RATE),
            nn.Linear(CHANNELS * 4, 4),
        )

    def forward(self, x):
        dropped = self.dropout(self.first(x).tanh() + 2)
        return self.last(dropped.flatten(1)), dropped


def test_channels_are_dropped_whole_and_the_step_is_pytorchs_with_these(tmp_path):
    """Compared with plain PyTorch that drops the same channels."""
    torch.manual_seed(3)
    ours = DroppingChannels().double()
    theirs = copy.deepcopy(ours)
    x, y = torch.randn(10 * BATCH, 1, 4, 4).double(), torch.randint(4, (10 * BATCH,))
    loader, criterion = DataLoader(TensorDataset(x, y), BATCH), nn.CrossEntropyLoss()
    optimizer = optim.SGD(ours.parameters(), 0.05)
    cbtorch.initialize(model_dir=tmp_path)
    model, batches = cbtorch.module(ours), cbtorch.dataloader(loader)
    kept, losses = [], []
    with cbtorch.Session(model, optimizer, criterion):
        for x, y in batches:
            optimizer.zero_grad()
            out, dropped = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            kept.append(dropped.detach() != 0)
            losses.append(loss.item())
        kept = [torch.as_tensor(each.numpy()) for each in kept]
    for mask in kept:
        assert torch.equal(mask, mask[:, :, :1, :1].expand_as(mask))
    values = len(kept) * BATCH * CHANNELS
    found = sum(int(mask[:, :, 0, 0].sum()) for mask in kept)
    assert abs(found - values * (1 - RATE)) < 4 * math.sqrt(values * RATE * (1 - RATE))
    again, expected = optim.SGD(theirs.parameters(), 0.05), []
    for (x, y), mask in zip(loader, kept, strict=True):
        again.zero_grad()
        hidden = (theirs.first(x).tanh() + 2) * mask / (1 - RATE)
        loss = criterion(theirs.last(hidden.flatten(1)), y)
        loss.backward()
        again.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-10)


def encoder_outputs(folder, layer, rate):
    """Losses of a Session over one encoder layer, and the last step's input and output."""
    cbtorch.initialize(model_dir=folder)
    model = cbtorch.module(layer.double().train())
    optimizer = optim.Adam(model.parameters(), rate)
    x = torch.randn(8, 5, 16).double().repeat(STEPS, 1, 1)
    loader = cbtorch.dataloader(DataLoader(TensorDataset(x), 8))
    losses, counts = [], []
    with cbtorch.Session(model, optimizer, mode="train"):
        for (rows,) in loader:
            optimizer.zero_grad()
            out = model(rows)
            loss = (out - rows.flip(2)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            counts.append(((out.detach() - rows).abs() < 1e-9).sum())
        return [float(loss) for loss in losses], [int(count) for count in counts]


@pytest.mark.slow
def test_an_encoder_layer_with_its_default_dropout_is_trained(tmp_path):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    losses, _ = encoder_outputs(tmp_path / "trained", layer, 0.01)
    assert all(map(math.isfinite, losses))
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert len(set(losses)) == STEPS


@pytest.mark.slow
def test_an_encoder_layer_drops_as_many_as_it_should(tmp_path):
    """The feed-forward part returns ones, of which the last dropout keeps nine in ten."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    for weight in (layer.self_attn.out_proj.weight, layer.linear2.weight):
        nn.init.zeros_(weight)
    nn.init.ones_(layer.linear2.bias)
    _, counts = encoder_outputs(tmp_path, layer, 0.0)
    values = STEPS * 8 * 5 * 16
    assert abs(sum(counts) - values * 0.1) < 4 * math.sqrt(values * 0.1 * 0.9)
    assert len(set(counts)) > 1
