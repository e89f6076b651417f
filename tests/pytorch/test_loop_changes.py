"""Loops that do in their fourth step what the first three have not shown: right, or refused."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn, optim  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


class Script:
    def __init__(self, *layers):
        torch.manual_seed(3)
        layers = layers or (nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
        self.model = nn.Sequential(*layers).double()
        self.optimizer = optim.SGD(self.model.parameters(), 0.05)
        x, y = torch.randn(64, 6, dtype=torch.float64), torch.randint(4, (64,))
        self.loader = DataLoader(TensorDataset(x, y), 8)
        self.criterion = nn.CrossEntropyLoss()

    def session(self, folder, mode="train"):
        cbtorch.initialize(model_dir=folder)
        self.model, self.loader = cbtorch.module(self.model), cbtorch.dataloader(self.loader)
        optimizer = self.optimizer if mode == "train" else None
        return cbtorch.Session(self.model, optimizer, self.criterion, mode=mode)

    def train(self, before=lambda step: None, skips=lambda step, loss: False):
        """One pass: `before` each step, and none where it `skips`."""
        for step, (x, y) in enumerate(self.loader, 1):
            before(step)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x.to("cpu").contiguous()), y.long())
            if skips(step, loss):
                continue
            loss.backward()
            self.optimizer.step()


def test_conversions_that_change_nothing_are_none(tmp_path):
    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        ours.train()
    theirs.train()
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def thaw(script):
    for is_trained in (False, True):
        script.model[0].requires_grad_(is_trained)
        script.train()


def switch_norms(script):
    for is_training in (True, False, True):
        script.model[1].train(is_training)
        script.train()


def test_a_layer_that_is_thawed_between_passes_trains_from_then_on(tmp_path):
    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        thaw(ours)
    thaw(theirs)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_norm_that_is_switched_between_passes_is_refused(tmp_path):
    """Its statistics are no state of the second program, whose store would have to be another."""
    script = Script(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))
    said = r"test_loop_changes.py:[0-9]+: 1.running_mean, 1.running_var are updated in some"
    with pytest.raises(UsageError, match=said), script.session(tmp_path):
        switch_norms(script)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (lambda s: s.train(skips=lambda n, loss: n == 6 and loss.item() > 0), "must follow: step"),
        (
            lambda s: s.train(lambda n: s.optimizer.load_state_dict(s.optimizer.state_dict())),
            "load_state_dict of the optimizer must be called before",
        ),
    ],
    ids=["a step is skipped", "the optimizer's state is loaded"],
)
def test_what_the_program_does_not_do_is_refused(tmp_path, changes, said):
    script = Script()
    with pytest.raises(UsageError, match=said), script.session(tmp_path):
        changes(script)


def test_a_layer_that_is_called_beside_the_model_is_refused(tmp_path):
    script = Script()
    said = r"test_loop_changes.py:[0-9]+: linear takes a weight of the model"
    with pytest.raises(UsageError, match=said), script.session(tmp_path), torch.no_grad():
        for step, (x, y) in enumerate(script.loader):
            script.criterion(script.model(x), y).item()
            if step == 5:
                script.model[0](x).sum().item()


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(9)])
def test_an_evaluation_that_computes_as_in_training_is_refused(tmp_path, layer):
    script = Script(nn.Linear(6, 9), layer, nn.Linear(9, 4))
    said = "an evaluation computes .* as in training: call model.eval"
    with pytest.raises(UsageError, match=said), script.session(tmp_path, "eval"), torch.no_grad():
        for x, y in script.loader:
            script.criterion(script.model(x), y).item()


def test_predictions_are_collected_in_a_tensor_of_the_loop(tmp_path):
    """From the fourth batch on, when batches have no numbers on the host."""
    ours, theirs = Script(), Script()

    def collected(script):
        found = torch.zeros(64, dtype=torch.float64)
        with torch.no_grad():
            for step, (x, y) in enumerate(script.loader):
                out = script.model(x)
                if step >= 4:
                    found[step * 8 : step * 8 + 8] = out.sum(1)
                script.criterion(out, y).item()
        return found

    with ours.session(tmp_path, "eval"):
        found = collected(ours)
    torch.testing.assert_close(found, collected(theirs), rtol=1e-10, atol=1e-12)


def test_a_second_training_in_the_same_folder_is_refused(tmp_path):
    """It would take the first one's steps as its own, and train nothing."""
    script = Script()
    with script.session(tmp_path / "one"):
        script.train()
    script.optimizer = optim.SGD(script.model.parameters(), 0.05)
    again = cbtorch.Session(script.model, script.optimizer, script.criterion)
    with pytest.raises(UsageError, match="a second training of the script"), again:
        script.train()
    cbtorch.initialize(model_dir=tmp_path / "two")
    before = script.model[0].weight.clone()
    with cbtorch.Session(script.model, script.optimizer, script.criterion):
        script.train()
    assert not torch.equal(script.model[0].weight, before)
