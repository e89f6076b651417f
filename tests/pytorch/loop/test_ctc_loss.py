"""Training loops with ctc_loss: lengths and targets of each batch, as in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402

SAMPLES, TIMES, CLASSES = 48, 24, 5


class Padded(Kit):
    """Targets and lengths are in the batch; some targets are longer than their inputs."""

    longest = 4
    last_step = 0  # before which targets are short

    def __init__(self, *layers, **options):
        super().__init__(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, CLASSES), **options)
        drawn = torch.Generator().manual_seed(5)

        def whole(least, most, *sizes):
            return torch.randint(least, most + 1, sizes, generator=drawn)

        x = torch.randn(SAMPLES, TIMES, 6, generator=drawn).double()
        labels = whole(0, self.longest, SAMPLES)
        labels[: self.last_step * 8].clamp_(max=4)
        targets = whole(1, CLASSES - 1, SAMPLES, self.longest)
        self.data = TensorDataset(x, targets, whole(3, TIMES, SAMPLES), labels)
        self.train = DataLoader(self.data, 8)
        self.criterion = nn.CTCLoss(zero_infinity=True)


class Joined(Padded):
    """Loader that is not prepared by csrun; targets of a batch are concatenated."""

    longest, last_step = 20, 4

    def __init__(self, *layers, **options):
        super().__init__(*layers, **options)
        self.train = DataLoader(self.data, 8, collate_fn=joined)

    def session(self, folder, **options):
        cbtorch.initialize(model_dir=folder, **options)
        self.model = cbtorch.module(self.model)
        return cbtorch.Session(self.model, self.optimizer, mode="train")


def joined(rows):
    x, targets, inputs, labels = zip(*rows, strict=True)
    short = [target[:n] for target, n in zip(targets, labels, strict=True)]
    return torch.stack(x), torch.cat(short), torch.stack(inputs), torch.stack(labels)


def log_probs(kit, x):
    return kit.model(x).log_softmax(2).transpose(0, 1)


def by_lengths(kit, x, targets, inputs, labels):
    return kit.criterion(log_probs(kit, x), targets, inputs, labels)


def of_whole_inputs(kit, x, targets, inputs, labels):
    """Constant input lengths; target lengths are the batch's."""
    return kit.criterion(log_probs(kit, x), targets, torch.full((len(x),), TIMES), labels)


def of_fixed_length(kit, x, targets, inputs, labels):
    """Concatenated targets of equal lengths."""
    lengths = (TIMES,) * len(x), (targets.shape[1],) * len(x)
    return kit.criterion(log_probs(kit, x), targets.reshape(-1), *lengths)


def of_half_length(kit, x, targets, inputs, labels):
    """Concatenated targets, with lengths from the batch."""
    lengths = inputs, labels * 0 + 2
    return kit.criterion(log_probs(kit, x), targets[:, :2].reshape(-1), *lengths)


def trained(*losses_of):
    def loop(kit):
        losses = []
        for _ in range(2):
            for batch in kit.train:
                kit.optimizer.zero_grad()
                loss = sum(loss_of(kit, *batch) for loss_of in losses_of)
                loss.backward()
                kit.optimizer.step()
                losses.append(loss.detach())
        return losses

    return loop


def test_targets_and_lengths_of_the_batch(tmp_path):
    beside(trained(by_lengths, of_fixed_length, of_half_length), tmp_path, kit=Padded)
    assert len(list(tmp_path.glob("tfcs_*"))) == 1


def test_micro_batches_add_up_to_the_batch(tmp_path):
    settings = {"micro_batch_size": 2}
    beside(trained(by_lengths, of_whole_inputs), tmp_path, kit=Padded, settings=settings)


def test_lengths_that_change_do_not_compile_each_step(tmp_path):
    """Up to 4 target labels, later up to 20: one program for each.

    The third is for the first step with long targets, which was not predicted.
    """
    beside(trained(by_lengths), tmp_path, kit=Joined)
    assert len(list(tmp_path.glob("tfcs_*"))) == 3


def test_targets_of_the_script_cannot_be_divided(tmp_path):
    with pytest.raises(UsageError, match="does not know which part of it"):
        beside(trained(by_lengths), tmp_path, kit=Joined, settings={"micro_batch_size": 2})
