"""Evaluations that write buffers, such as the statistics of a norm in training mode."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def evaluated(kit, loader):
    """Losses of an evaluation, and sums of buffers."""
    with torch.no_grad():
        losses = [kit.criterion(kit.model(x), y) for x, y in loader]
    return [*losses, *(buffer.double().sum() for buffer in kit.model.buffers())]


def layers(momentum=0.1):
    return nn.Linear(6, 9), nn.BatchNorm1d(9, momentum=momentum), nn.Tanh(), nn.Linear(9, 4)


def in_training_mode(kit):
    """An evaluation in training mode, one in eval(), and a pass of training, twice."""
    found = []
    for _ in range(2):
        kit.model.train()
        found += evaluated(kit, kit.val)
        kit.model.eval()
        found += evaluated(kit, kit.val)
        kit.model.train()
        found += kit.train_once()
    return [*found, *evaluated(kit, kit.val)]


@pytest.mark.parametrize("fast", [True, False])
def test_an_evaluation_in_training_mode_updates_the_statistics(tmp_path, fast):
    beside(in_training_mode, tmp_path, *layers(), settings={"fast": fast})


def test_so_does_one_over_the_loader_of_the_training(tmp_path):
    def loop(kit):
        return [x for _ in range(2) for x in (*kit.train_once(), *evaluated(kit, kit.train))]

    beside(loop, tmp_path, *layers())


def test_update_bn_of_averaged_weights(tmp_path):
    """PyTorch's own loop, which resets the statistics and averages them over all batches."""

    def loop(kit):
        found = kit.train_once()
        torch.optim.swa_utils.update_bn(kit.train, kit.model)
        kit.model.eval()
        return [*found, *evaluated(kit, kit.val)]

    beside(loop, tmp_path, *layers())


def test_statistics_are_read_after_a_pass_that_was_left(tmp_path):
    """No other batch follows the evaluation of the last one."""

    def loop(kit):
        found = []
        for _ in range(6):
            with torch.no_grad():
                for step, (x, y) in enumerate(kit.val):
                    found.append(kit.criterion(kit.model(x), y))
                    if step == 2:
                        break
                found += [buffer.double().sum() for buffer in kit.model.buffers()]
            found += kit.train_once()
        return found

    beside(loop, tmp_path, *layers())


class Seen(nn.Linear):
    """Module that counts samples, in evaluations too, and keeps the mean of the last batch."""

    def __init__(self):
        super().__init__(6, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("last", torch.zeros(6, dtype=torch.float64))

    def forward(self, x):
        self.seen += x.detach().abs().max()
        self.last.copy_(x.detach().mean(0))
        return super().forward(x)


def test_an_evaluation_adds_to_a_buffer(tmp_path):
    def loop(kit):
        found = []
        for _ in range(2):
            kit.model.train()
            found += kit.train_once()
            kit.model.eval()
            found += evaluated(kit, kit.val)
        return found

    beside(loop, tmp_path, Seen())


class Evaluating(Kit):
    """Kit with a Session without an optimizer."""

    def session(self, folder, **options):
        import cerebras_torch as cbtorch

        super().session(folder, **options)
        return cbtorch.Session(self.model, criterion=self.criterion, mode="eval")


def test_a_session_of_an_evaluation_leaves_the_statistics_to_the_model(tmp_path):
    def loop(kit):
        return evaluated(kit, kit.val) + evaluated(kit, kit.train)

    beside(loop, tmp_path, *layers(), kit=Evaluating)


def test_a_killed_run_writes_the_same_statistics_again(tmp_path):
    """Including those of the evaluation after the checkpoint, which are in no checkpoint."""

    def run(folder, passes):
        kit = Kit(*layers())
        with kit.session(folder):
            for _ in range(passes):
                found = [float(x) for x in kit.train_once()]
                found += [float(x) for x in evaluated(kit, kit.val)]
        return found, [x.tolist() for x in kit.model.state_dict().values()]

    run(tmp_path / "a", 1)
    assert run(tmp_path / "a", 2) == run(tmp_path / "b", 2)


def test_dropout_in_an_evaluation_is_refused(tmp_path):
    kit = Kit(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 4))
    said = "an evaluation computes dropout as in training: call model.eval"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path), torch.no_grad():
        for x, y in kit.val:
            kit.criterion(kit.model(x), y).item()
