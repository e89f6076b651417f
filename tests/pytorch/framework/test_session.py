"""A loop of `cerebras.framework.torch` in one process, against the same loop in plain PyTorch."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras.framework.torch as cbtorch  # noqa: E402
from cerebras.framework.torch.core import cb_model as cm  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


class Counting(nn.Module):
    """Model that passes its hits to a closure, in float16 where possible."""

    def __init__(self):
        super().__init__()
        self.inner, self.hits = nn.Linear(6, 4), []

    def forward(self, x, y):
        logits = self.inner(x) * torch.ones((), dtype=torch.float16)
        self.count((logits.argmax(1) == y).sum(), of=len(y))
        return nn.functional.cross_entropy(logits, y).half()

    @cm.step_closure
    def count(self, hits, of):
        self.hits.append((int(hits), of))


class Script:
    def __init__(self, samples=48):
        torch.manual_seed(3)
        self.model = Counting()
        self.x, self.y = torch.randn(samples, 6), torch.randint(4, (samples,))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.losses, self.log = [], []

    def loader(self):
        return DataLoader(TensorDataset(self.x, self.y), 8)

    def wrapped(self, folder, **options):
        cbtorch.initialize(service_workdir=folder, **options)
        self.model = cbtorch.module(self.model, None)
        self.optimizer = cbtorch.optimizer(self.optimizer)
        return cbtorch.dataloader(self.loader())

    @cm.step_closure
    def keep(self, step, loss):
        assert type(loss) is torch.Tensor
        self.losses.append(loss.item())
        self.log.append(("kept", step))

    def train(self, loader, steps=12):
        step = 0
        while step < steps:
            for x, y in loader:
                self.optimizer.zero_grad()
                loss = self.model(x, y)
                cbtorch.amp.GradScaler(loss_scale="dynamic")(loss).backward()
                self.optimizer.step()
                step += 1
                self.keep(step, loss)
                self.log.append(("left", step))
        cm.mark_step()


def plain(steps=12):
    """Losses and hits in PyTorch."""
    script = Script()
    losses, hits, model = [], [], script.model.inner
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    while len(losses) < steps:
        for x, y in script.loader():
            optimizer.zero_grad()
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            hits.append((int((logits.argmax(1) == y).sum()), 8))
    return losses, hits, model


def test_closures_run_at_the_end_of_their_step_those_of_forward_in_each(tmp_path):
    script = Script()
    loader = script.wrapped(tmp_path)
    with cbtorch.Session(loader, "train"):
        script.train(loader)
    losses, hits, model = plain()
    assert script.losses == pytest.approx(losses, abs=1e-6)
    assert script.model.hits == hits
    torch.testing.assert_close(script.model.inner.weight, model.weight, atol=1e-6, rtol=0)
    assert script.log == [(what, n) for n in range(1, 13) for what in ("left", "kept")]


def test_a_schedule_and_a_clipper_act_at_the_step(tmp_path):
    script = Script()
    loader = script.wrapped(tmp_path)
    cbtorch.optim.lr_scheduler.Polynomial(script.optimizer, 0.5, 0.1, 6)
    script.optimizer.gradient_clipper = lambda p: nn.utils.clip_grad_norm_(p, 0.2)
    with cbtorch.Session(loader, "train"):
        script.train(loader, 6)
    again, losses = Script(), []
    model = again.model.inner
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for n, (x, y) in enumerate(again.loader()):
        optimizer.param_groups[0]["lr"] = 0.5 - 0.4 * n / 6
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
        losses.append(loss.item())
    assert script.losses == pytest.approx(losses, abs=1e-6)


def test_a_checkpoint_is_torchs_and_brings_the_optimizer_in(tmp_path):
    script, path = Script(), tmp_path / "checkpoint.mdl"
    loader = script.wrapped(tmp_path)
    with cbtorch.Session(loader, "train"):
        script.train(loader, 6)
        state = {"model": script.model.state_dict(), "optimizer": script.optimizer.state_dict()}
        cm.save(state, path)
    saved = torch.load(path)
    again = Script()
    loader = again.wrapped(tmp_path)
    with cbtorch.Session(loader, "train"):
        again.model.load_state_dict(copy.deepcopy(saved["model"]))
        again.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        again.train(loader, 6)
    assert script.losses + again.losses == pytest.approx(plain()[0], abs=1e-6)
    assert sorted(path.name for path in (tmp_path / "csrun").iterdir()) == ["run_1", "run_2"]


def test_a_step_is_compiled_without_a_session(tmp_path):
    script = Script()
    loader = script.wrapped(tmp_path, compile_only=True)
    for x, y in loader:
        script.optimizer.zero_grad()
        script.model(x, y).backward()
        script.optimizer.step()
        break
    assert cbtorch.compile(fabric_config_file=None, validate_only=False)
    assert list(tmp_path.glob("csrun/run_1/tfcs_*/compile_report.txt"))
    assert script.model.hits == []


def test_compiling_without_a_step_and_appliance_mode_are_refused(tmp_path):
    cbtorch.initialize(service_workdir=tmp_path, compile_only=True)
    with pytest.raises(UsageError, match="compile: no step was made"):
        cbtorch.compile()
    with pytest.raises(UsageError, match="appliance mode is not supported"):
        cbtorch.initialize(service_workdir=tmp_path, appliance=True)


def scaled_run(folder, mixed, scaler_of=cbtorch.amp.GradScaler, steps=12, **options):
    """Losses and loss-scale state of a script whose params file has these keys."""
    script = Script()
    loader = script.wrapped(folder, **options)
    scaler = scaler_of("dynamic", 2.0**40, None, None, 2.0**40, None, mixed)
    with cbtorch.Session(loader, "train"):
        for _ in range(steps // 6):
            for x, y in loader:
                script.optimizer.zero_grad()
                loss = script.model(x, y)
                scaler(loss).backward()
                script.optimizer.step()
                script.losses.append(loss.detach())
        cm.mark_step()
        state = cbtorch.amp.state_dict()
    return [float(loss) for loss in script.losses], state


@pytest.mark.parametrize("cb16", [False, True])
def test_mixed_precision_of_the_params_file_scales_the_loss(tmp_path, cb16):
    losses, state = scaled_run(tmp_path, True, steps=48, use_cbfloat16=cb16)
    assert losses[0] == losses[6]  # skipped
    assert losses[-1] < losses[0] - 0.1
    assert state["loss_scale"] < 2.0**40 / 2**6
    assert (state["loss_scale"] > 2.0**20) == cb16
    whole, kept = scaled_run(tmp_path / "whole", False)
    assert whole == pytest.approx(plain()[0], abs=1e-6)
    assert kept["loss_scale"] == 2.0**40


def test_a_scale_of_a_checkpoint_is_where_a_run_goes_on(tmp_path):
    state = {"loss_scale": 8.0, "steps_since_rescale": 3, "overflows_since_rescale": 0}

    def made(*arguments):
        scaler = cbtorch.amp.GradScaler(*arguments)
        cbtorch.amp.load_state_dict(state)
        return scaler

    _, found = scaled_run(tmp_path, True, made)
    assert found == {"loss_scale": 8, "steps_since_rescale": 15, "overflows_since_rescale": 0}


def test_cb16_needs_mixed_precision(tmp_path):
    with pytest.raises(UsageError, match="can only be used in mixed precision mode"):
        scaled_run(tmp_path, False, use_cbfloat16=True)


def test_settings_of_the_original_compiler_are_logged_once(tmp_path, caplog):
    cbtorch.initialize(service_workdir=tmp_path)
    config = cbtorch.state().full_config
    with caplog.at_level("INFO", "csrun"):
        for _ in range(2):
            config.placement.optimize_buses.margin = 0.5
    assert config.placement.optimize_buses.margin == 0.5
    said = [r.message for r in caplog.records if "full_config" in r.message]
    assert len(said) == 1
    assert said[0].startswith("full_config.placement.optimize_buses.margin has no effect")
