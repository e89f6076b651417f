"""Users' training loops in one process, against the same loops in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.05, momentum=0.9),
    "adam": lambda p: optim.Adam(p, 0.01, weight_decay=0.02),
    "adamw": lambda p: optim.AdamW(p, 0.01, betas=(0.8, 0.95)),
    "lamb": lambda p: cbtorch.optim.Lamb(p, 0.02, weight_decay=0.01),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Limit PyTorch to one thread, as waking others takes longer than these layers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Script:
    """Model, optimizer and data of one seed."""

    def __init__(self, make=OPTIMIZERS["sgd"], warmup=0, samples=64, dtype=torch.float64):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).to(dtype)
        self.optimizer = make(self.model.parameters())
        self.scheduler = LambdaLR(self.optimizer, lambda step: min(1, (step + 1) / (warmup + 1)))
        self.criterion = nn.CrossEntropyLoss()
        x, y = torch.randn(samples, 6, dtype=dtype), torch.randint(4, (samples,))
        self.loader = DataLoader(TensorDataset(x, y), 8, shuffle=True, drop_last=True)

    def loop(self, epochs, read=lambda step: False):
        """The user's loop; return the losses."""
        torch.manual_seed(4)  # of the order
        losses, step = [], 0
        for _ in range(epochs):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                losses.append(loss.item() if read(step) else loss.detach())
                step += 1
        return [float(loss) for loss in losses]

    def session(self, folder, **options):
        """The same loop on csrun."""
        cbtorch.initialize(model_dir=folder, **options)
        self.model = cbtorch.module(self.model)
        self.loader = cbtorch.dataloader(self.loader)
        return cbtorch.Session(self.model, self.optimizer, self.criterion, mode="train")


def pairs(one, other):
    """Pairs of parameters and of optimizer state of two scripts."""
    for name, value in one.model.state_dict().items():
        yield name, value, other.model.state_dict()[name]
    ours, theirs = (s.optimizer.state_dict()["state"] for s in (one, other))
    assert set(ours) == set(theirs)
    for number, state in theirs.items():
        for name, value in state.items():
            if value is not None:
                yield f"{number}.{name}", ours[number][name], value


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
def test_losses_weights_and_the_optimizers_state_are_pytorchs(tmp_path, name):
    ours, theirs = (Script(OPTIMIZERS[name], warmup=20) for _ in range(2))
    with ours.session(tmp_path):
        found = ours.loop(epochs=4, read=lambda step: step % 7 == 0)
    torch.testing.assert_close(found, theirs.loop(epochs=4), rtol=1e-10, atol=1e-10)
    for what, our, their in pairs(ours, theirs):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-10, msg=what)
    torch.testing.assert_close(ours.loop(1), theirs.loop(1))  # both go on in PyTorch


def test_a_warm_up_is_compiled_once(tmp_path, caplog):
    ours, theirs = (Script(OPTIMIZERS["adamw"], warmup=50) for _ in range(2))
    with caplog.at_level("INFO", "csrun"), ours.session(tmp_path):
        found = ours.loop(epochs=25)
    torch.testing.assert_close(found, theirs.loop(epochs=25), rtol=1e-10, atol=1e-10)
    assert len(list(tmp_path.glob("tfcs_*"))) == 1
    assert sum("Compiled in" in line for line in caplog.messages) == 1


def test_reading_each_step_changes_nothing(tmp_path):
    ours, theirs = Script(), Script()
    with ours.session(tmp_path / "a"):
        each = ours.loop(2, read=lambda step: True)
    with theirs.session(tmp_path / "b"):
        late = theirs.loop(2)
    assert each == late


def test_values_that_are_no_loss_are_read_in_their_step(tmp_path):
    def loop(script):
        torch.manual_seed(4)
        hits = 0
        for x, y in script.loader:
            script.optimizer.zero_grad()
            logits = script.model(x)
            loss = script.criterion(logits, y)
            loss.backward()
            script.optimizer.step()
            hits += (logits.argmax(1) == y).sum().item()
        return hits

    ours, theirs = Script(), Script()
    with ours.session(tmp_path):
        found = loop(ours)
    assert found == loop(theirs)
    for what, our, their in pairs(ours, theirs):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-10, msg=what)


def test_an_optimizer_of_other_parameters_is_refused(tmp_path):
    ours = Script(lambda p: optim.SGD([nn.Parameter(torch.zeros(2))], 0.1))
    said = "test_session.py:[0-9]+: .*that is not in the Session's model"
    with pytest.raises(UsageError, match=said), ours.session(tmp_path):
        ours.loop(1)


def test_without_initialize_nothing_begins():
    from csrun.pytorch import settings

    settings._given.clear()
    with pytest.raises(UsageError, match=r"test_session.py:[0-9]+: cbtorch.module needs"):
        cbtorch.module(nn.Linear(2, 2))


def validated(script, validation, epochs=3):
    """Mean losses of alternating training and validation, as in most scripts."""
    torch.manual_seed(4)
    losses = []
    for _ in range(epochs):
        script.model.train()
        for x, y in script.loader:
            script.optimizer.zero_grad()
            loss = script.criterion(script.model(x), y)
            loss.backward()
            script.optimizer.step()
        script.model.eval()
        total = torch.tensor(0.0, dtype=torch.float64)
        with torch.no_grad():
            for x, y in validation:
                total += script.criterion(script.model(x), y) * len(y)
        losses += [loss.item(), total.item()]
    return losses


def test_one_session_trains_and_evaluates_and_takes_short_last_batches(tmp_path):
    ours, theirs = Script(samples=53), Script(samples=53)
    for script in (ours, theirs):
        script.loader = DataLoader(script.loader.dataset, 8, shuffle=True)  # the last one has 5
    held = TensorDataset(torch.randn(21, 6, dtype=torch.float64), torch.randint(4, (21,)))
    validation = DataLoader(held, 8)
    session = ours.session(tmp_path)
    with session:
        found = validated(ours, cbtorch.dataloader(validation))
    torch.testing.assert_close(found, validated(theirs, validation), rtol=1e-10, atol=1e-10)
    for what, our, their in pairs(ours, theirs):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-10, msg=what)


def test_an_evaluation_alone_has_pytorchs_numbers(tmp_path):
    ours = Script()

    def loop(model, loader):
        total, hits = 0.0, 0
        with torch.no_grad():
            for x, y in loader:
                logits = model(x)
                total += ours.criterion(logits, y).item() * len(y)
                hits += (logits.argmax(1) == y).sum().item()
        return total, hits

    plain = DataLoader(ours.loader.dataset, 10)
    expected = loop(ours.model.eval(), plain)
    cbtorch.initialize(model_dir=tmp_path)
    model, loader = cbtorch.module(ours.model), cbtorch.dataloader(plain)
    with cbtorch.Session(model, criterion=ours.criterion, mode="eval"):
        found = loop(model, loader)
    assert found[1] == expected[1]
    assert found[0] == pytest.approx(expected[0], rel=1e-12)


class KilledError(Exception):
    """Raised to end a script without saving."""


def with_plateau(script, validation, killed_at=None):
    """Loop whose rate depends on the losses of evaluations; return the rates and values read."""
    torch.manual_seed(4)
    plateau = optim.lr_scheduler.ReduceLROnPlateau(script.optimizer, patience=0, threshold=0.2)
    read, step = [], 0
    for _ in range(5):
        for x, y in script.loader:
            script.optimizer.zero_grad()
            logits = script.model(x)
            loss = script.criterion(logits, y)
            loss.backward()
            script.optimizer.step()
            script.scheduler.step()
            step += 1
            if step % 3 == 0:
                read.append(loss.item() + logits.max().item())
            if step == killed_at:
                raise KilledError
        script.model.eval()
        read.append(sum(script.criterion(script.model(x), y).item() for x, y in validation))
        plateau.step(read[-1])
        read.append(script.optimizer.param_groups[0]["lr"])
        script.model.train()
    return read


@pytest.mark.parametrize("killed_at", [27, 21])  # amid a pass, and in a step that was saved
def test_a_killed_script_goes_on_bit_for_bit_when_it_is_run_again(tmp_path, killed_at):
    def run(folder, killed_at=None):
        script = Script(OPTIMIZERS["adam"], warmup=20)
        held = DataLoader(TensorDataset(*script.loader.dataset[:24]), 8)
        with script.session(folder, save_checkpoints_steps=7):
            return script, with_plateau(script, cbtorch.dataloader(held), killed_at)

    whole, read = run(tmp_path / "whole")
    with pytest.raises(KilledError):
        run(tmp_path / "killed", killed_at)
    again, read_again = run(tmp_path / "killed")
    assert read_again == read
    for _, one, other in pairs(again, whole):
        assert torch.equal(one, other)


class Normed(Script):
    """The same with batch normalization, whose running statistics forward writes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        layers = nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 4)
        self.model = nn.Sequential(*layers).double()
        self.optimizer = OPTIMIZERS["sgd"](self.model.parameters())
        self.scheduler = LambdaLR(self.optimizer, lambda step: 1.0)


def test_what_forward_writes_is_state_and_what_reading_costs_is_said_once(tmp_path, caplog):
    ours, theirs = Normed(), Normed()
    with ours.session(tmp_path):
        found = ours.loop(4, read=lambda step: True)
    torch.testing.assert_close(found, theirs.loop(4), rtol=1e-10, atol=1e-10)
    for what, our, their in pairs(ours, theirs):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-10, msg=what)
    said = [line for line in caplog.messages if "reads a value in each step" in line]
    assert len(said) == 1
    assert "test_session.py:" in said[0]


def test_a_line_that_reads_in_each_step_is_warned_about_once_after_a_pause_too(tmp_path, caplog):
    ours = Script()
    with ours.session(tmp_path):
        ours.loop(6, read=lambda step: step != 22)  # as an evaluation interrupts a training
    assert sum("reads a value in each step" in line for line in caplog.messages) == 1


class Wrapped(optim.Optimizer):
    """Optimizer that wraps another one, as Accelerate's `prepare` returns it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step(closure)


def test_the_optimizer_in_a_wrapper_is_taken(tmp_path):
    beside(
        lambda kit: kit.train_once(),
        tmp_path,
        optimizer=lambda p: Wrapped(optim.SGD(p, 0.05, momentum=0.9)),
    )


def with_an_iterator_from_before(kit):
    losses = []
    for x, y in kit.early:
        kit.optimizer.zero_grad()
        loss = kit.criterion(kit.model(x), y)
        loss.backward()
        kit.optimizer.step()
        losses.append(loss.detach())
    return losses


class EarlyKit(Kit):
    """Kit whose pass begins before the Session's block."""

    def __init__(self):
        super().__init__()
        self.early = iter(self.train)

    def session(self, folder, **options):
        opened = super().session(folder, **options)
        self.early = iter(self.train)
        return opened


def test_a_pass_is_of_the_session_in_which_its_first_batch_is_taken(tmp_path):
    beside(with_an_iterator_from_before, tmp_path, kit=EarlyKit)


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_in_parallel(model):
    return nn.DataParallel(compiled(model))


@pytest.mark.parametrize(
    "wrap", [compiled, compiled_in_place, nn.DataParallel, compiled_in_parallel]
)
def test_a_wrapped_model_and_a_compiled_loss_have_pytorchs_numbers(tmp_path, wrap):
    def loop(kit):
        return [*kit.train_once(), *kit.train_once()]

    class Wrapped(Kit):
        def session(self, folder, **options):
            cbtorch.initialize(model_dir=folder, **options)
            own = self.model
            self.model = wrap(cbtorch.module(own))
            self.criterion = torch.compile(self.criterion, backend="eager")
            self.train = cbtorch.dataloader(self.train)
            block = cbtorch.Session(self.model, self.optimizer, self.criterion, mode="train")
            self.model.state_dict = own.state_dict
            return block

    beside(loop, tmp_path, kit=Wrapped)
