"""Several Sessions of one script: parts of one run with one store."""

import copy
import pickle
import re

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.fc_mnist import scalars  # noqa: E402
from support.torch_loops import Kit  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


class Script:
    """Model, optimizer, shuffled training set with a short last batch, validation set."""

    def __init__(self, seed=3):
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(6, 9, False), nn.BatchNorm1d(9), nn.Linear(9, 4)
        ).double()
        self.optimizer = optim.AdamW(self.model.parameters(), 0.02)
        self.criterion = nn.CrossEntropyLoss()
        x, y = torch.randn(61, 6, dtype=torch.float64), torch.randint(4, (61,))
        data = TensorDataset(x, y)
        self.train_loader = DataLoader(data, 8, shuffle=True)
        self.eval_loader = DataLoader(data, 16)
        self.make = Plain

    def on_csrun(self, folder, **options):
        cbtorch.initialize(model_dir=folder, **options)
        cbtorch.module(self.model)
        self.train_loader = cbtorch.dataloader(self.train_loader)
        self.eval_loader = cbtorch.dataloader(self.eval_loader)
        self.make = cbtorch.Session
        return self

    def train(self):
        self.model.train()
        with self.make(self.model, self.optimizer, self.criterion, mode="train"):
            losses = []
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
            return [float(loss) for loss in losses]

    def evaluate(self):
        self.model.eval()
        with self.make(self.model, None, self.criterion, mode="eval"), torch.no_grad():
            return sum(self.criterion(self.model(x), y).item() for x, y in self.eval_loader)


class Plain:
    """Script without a Session, in plain PyTorch."""

    def __init__(self, *unused, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def epochs(script, count, after=lambda epoch: None):
    """Values read from alternating training and evaluation, a Session for each."""
    torch.manual_seed(4)
    read = []
    for epoch in range(count):
        read += script.train()
        read.append(script.evaluate())
        after(epoch)
    return read


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def same_weights(one, other, assert_same=close):
    for name, value in one.model.state_dict().items():
        assert_same(value, other.model.state_dict()[name])


def test_sessions_in_turn_are_one_run_with_pytorchs_numbers(tmp_path, caplog):
    ours, theirs = Script().on_csrun(tmp_path), Script()
    with caplog.at_level("INFO", "csrun"):
        found = epochs(ours, 4)
    close(found, epochs(theirs, 4))
    same_weights(ours, theirs)
    compiled = [line for line in caplog.messages if "ompiled in" in line]
    assert len(compiled) == 4, compiled  # training and evaluation, each with a short last batch
    assert sum("Cached" in line for line in caplog.messages) == 0
    close(epochs(ours, 1), epochs(theirs, 1))
    ours.make = Plain
    close(epochs(ours, 1), epochs(theirs, 1))  # both go on in PyTorch


def test_what_the_script_writes_between_sessions_is_where_the_next_one_begins(tmp_path):
    ours, theirs = Script().on_csrun(tmp_path), Script()

    def scaled(script):
        def after(epoch):
            with torch.no_grad():
                script.model[0].weight.mul_(0.5)

        return epochs(script, 3, after)

    close(scaled(ours), scaled(theirs))
    same_weights(ours, theirs)


def test_an_optimizer_that_was_changed_between_sessions_is_refused(tmp_path):
    script = Script().on_csrun(tmp_path)
    script.train()
    script.optimizer.load_state_dict(copy.deepcopy(script.optimizer.state_dict()))
    with pytest.raises(
        UsageError, match=r"test_script_run.py:[0-9]+: the optimizer's state was changed"
    ):
        script.train()


READS = [
    lambda script: script.model.state_dict(),
    lambda script: script.optimizer.state_dict(),
    lambda script: copy.deepcopy(script.model),
    lambda script: pickle.dumps(script.model),
    lambda script: sum(p.norm() for p in script.model.parameters()),
    lambda script: script.model[0].weight.tolist(),
    lambda script: optim.swa_utils.AveragedModel(script.model),
]


def test_weights_that_a_replayed_session_does_not_have_are_refused(tmp_path):
    epochs(Script().on_csrun(tmp_path, keep_checkpoint_max=1), 2)
    others = Script(9).model.state_dict()
    ours, theirs = Script().on_csrun(tmp_path, keep_checkpoint_max=1), Script()
    gone = r"step 8 ran in an earlier run(.|\n)*is_replayed(.|\n)*keep_checkpoint_max"

    def after(epoch):
        if epoch == 0:
            for read in READS:
                with pytest.raises(UsageError, match=gone):
                    read(ours)
            ours.model.load_state_dict(others)  # what the checkpoint of step 16 has counts

    epochs(ours, 3, after)
    epochs(theirs, 3)
    same_weights(ours, theirs)


def test_another_model_is_evaluated_between_two_trainings(tmp_path):
    """As by averaged weights; training resumes from its checkpoint with the same bits."""

    def run(script, folder, between):
        script.on_csrun(folder)
        torch.manual_seed(4)
        found = []
        for _ in range(3):
            found += script.train()
            if not between:
                iter(script.eval_loader.loader)  # each pass draws from the order's generator
            else:
                other = cbtorch.module(copy.deepcopy(script.model).eval())
                with cbtorch.Session(other, mode="eval"), torch.no_grad():
                    for x, _ in script.eval_loader:
                        other(x).sum().item()
        return found

    one, other = Script(), Script()
    assert run(one, tmp_path / "one", True) == run(other, tmp_path / "other", False)
    same_weights(one, other, lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0))


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_the_model_in_the_block_is_a_plain_model_with_its_weights(tmp_path, way):
    script, theirs, copies = Script().on_csrun(tmp_path), Script(), []

    def trained(script, copied):
        torch.manual_seed(4)
        script.model.train()
        with script.make(script.model, script.optimizer, script.criterion, mode="train"):
            for step, (x, y) in enumerate(script.train_loader):
                script.optimizer.zero_grad()
                script.criterion(script.model(x), y).backward()
                script.optimizer.step()
                if step in (1, 5):
                    copied.append(way(script.model))

    trained(script, copies)
    plain = []
    trained(theirs, plain)
    x = torch.randn(5, 6, dtype=torch.float64)
    for ours, their in zip(copies, plain, strict=True):
        close(ours.eval()(x), their.eval()(x))
        assert "forward" not in vars(ours)


class LeftError(Exception):
    """Raised by the loop."""


@pytest.mark.parametrize("left_at", [2, 6])
@pytest.mark.parametrize("error", [LeftError, SystemExit, KeyboardInterrupt])
def test_a_block_that_is_left_by_an_error_saves_and_gives_back(tmp_path, left_at, error):
    ours, theirs = Script().on_csrun(tmp_path), Script()

    def left(script):
        torch.manual_seed(4)
        script.model.train()
        with script.make(script.model, script.optimizer, script.criterion, mode="train"):
            for step, (x, y) in enumerate(script.train_loader, 1):
                script.optimizer.zero_grad()
                loss = script.criterion(script.model(x), y)
                loss.backward()
                if step == left_at:
                    raise error
                script.optimizer.step()

    for script in (ours, theirs):
        with pytest.raises(error):
            left(script)
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        close(one, other)
        assert type(one.grad) in (type(None), torch.Tensor)
    assert (tmp_path / f"model-ckpt-{left_at - 1}.safetensors").exists()
    ours.make = Plain
    torch.manual_seed(5)
    found = ours.train()
    torch.manual_seed(5)
    close(found, theirs.train())  # both go on in PyTorch


def test_values_of_an_evaluation_are_read_when_its_loop_is_over(tmp_path):
    script = Script().on_csrun(tmp_path)
    script.model.eval()

    def values(make, loader):
        with make(script.model, None, script.criterion, mode="eval"), torch.no_grad():
            losses, hits = [], []
            for x, y in loader:
                out = script.model(x)
                losses.append(script.criterion(out, y))
                hits.append(out.argmax(1) == y)
            return [loss.item() for loss in losses], torch.cat([h.int() for h in hits]).sum().item()

    found, expected = (
        values(script.make, script.eval_loader),
        values(Plain, script.eval_loader.loader),
    )
    close(found[0], expected[0])
    assert found[1] == expected[1]


def test_a_loop_may_be_left_in_the_middle_and_a_block_may_have_no_step(tmp_path, caplog):
    ours, theirs = Script().on_csrun(tmp_path), Script()

    def some(script, count):
        """Leave loop and block by a return."""
        loss = None
        script.model.train()
        with script.make(script.model, script.optimizer, script.criterion, mode="train"):
            for step, (x, y) in enumerate(script.train_loader):
                if step == count:
                    return loss.item()
                script.optimizer.zero_grad()
                loss = script.criterion(script.model(x), y)
                loss.backward()
                script.optimizer.step()
        raise AssertionError("the pass is longer")

    said = r"test_script_run.py:[0-9]+: no batch of a cbtorch.dataloader was taken in"
    for count in (5, 3):
        torch.manual_seed(count)
        found = some(ours, count)
        assert not re.search(said, caplog.text)
        torch.manual_seed(count)
        close(found, some(theirs, count))
        with ours.make(ours.model, ours.optimizer, ours.criterion, mode="train"):
            pass
        assert re.search(said, caplog.text)
        caplog.clear()
    same_weights(ours, theirs)


def test_a_pass_that_outlives_its_block_is_refused(tmp_path):
    script = Script().on_csrun(tmp_path)
    with script.make(script.model, script.optimizer, script.criterion) as session:
        left = iter(script.train_loader)
        next(left)
    with pytest.raises(UsageError, match=r"test_script_run.py:[0-9]+: an iterator of a dataloader"):
        next(left)
    with pytest.raises(UsageError, match="a Session is open already"), session, session:
        pass


def test_a_function_trains_a_new_model_in_a_folder_of_its_own_each_time(tmp_path):
    def trained(seed, folder=None):
        script = Script(seed)
        return epochs(script.on_csrun(tmp_path / folder) if folder else script, 2)

    for seed in (3, 8):
        close(trained(seed, f"run{seed}"), trained(seed))


def test_a_session_of_a_dataloader_has_the_one_model_and_its_optimizer(tmp_path):
    ours, theirs = Script().on_csrun(tmp_path), Script()

    def later(model, optimizer, criterion, mode):
        loader = ours.train_loader if mode == "train" else ours.eval_loader
        return cbtorch.Session(loader, mode)

    ours.make = later
    close(epochs(ours, 2), epochs(theirs, 2))
    same_weights(ours, theirs)
    another = optim.SGD(ours.model.parameters(), 0.1)
    with pytest.raises(UsageError, match=r"test_script_run.py:[0-9]+: .* one optimizer .* got 2"):
        ours.train()
    del another
    other = cbtorch.module(nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"needs one model given to cbtorch.module, got 2"):
        ours.train()
    del other
    with pytest.raises(UsageError, match='mode must be "train" or "eval", got \'both\''):
        cbtorch.Session(ours.eval_loader, "both")


def test_numbers_of_the_script_are_in_the_events_at_their_steps(tmp_path):
    """Of each Session, and of an evaluation before the first step."""
    script = Script().on_csrun(tmp_path)
    script.model.eval()
    seen = []

    @cbtorch.step_closure
    def note(loss, scale=1.0):
        assert isinstance(loss, torch.Tensor)
        seen.append(loss.item() * scale)

    with script.make(script.model, script.optimizer, script.criterion) as session:
        with torch.no_grad():
            for x, y in script.eval_loader:
                first = script.criterion(script.model(x), y).item()
        cbtorch.summarize_scalar("validation", first)
        script.model.train()
        for step, (x, y) in enumerate(script.train_loader, 1):
            script.optimizer.zero_grad()
            loss = script.criterion(script.model(x), y)
            loss.backward()
            script.optimizer.step()
            if step in (2, 5):
                note(loss, scale=2.0)
                cbtorch.summarize_scalar("twice", loss * 2)
    assert not session.is_replayed
    (path,) = tmp_path.glob("events.out.tfevents.*")
    found = {(tag, step): value for step, values in scalars(path) for tag, value in values.items()}
    assert found["validation", 0] == pytest.approx(first, rel=1e-6)
    assert [found["twice", 2], found["twice", 5]] == pytest.approx(seen, rel=1e-6)
    with pytest.raises(UsageError, match="summarize_scalar must be called in a Session"):
        cbtorch.summarize_scalar("late", 1.0)


def test_a_second_training_in_the_same_folder_is_refused(tmp_path):
    """It would count the first one's steps as its own, and train nothing."""
    kit = Kit()
    with kit.session(tmp_path / "one"):
        kit.train_once()
    kit.optimizer = optim.SGD(kit.model.parameters(), 0.05)
    again = cbtorch.Session(kit.model, kit.optimizer, kit.criterion)
    with pytest.raises(UsageError, match="a second training of the script"), again:
        kit.train_once()
    cbtorch.initialize(model_dir=tmp_path / "two")
    before = kit.model[0].weight.clone()
    with cbtorch.Session(kit.model, kit.optimizer, kit.criterion):
        kit.train_once()
    assert not torch.equal(kit.model[0].weight, before)
