"""Script that opens no Session: refused in a job, a warning outside of one."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn  # noqa: E402
from torch.optim import optimizer as torchs  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402
from csrun.context import script_end  # noqa: E402
from csrun.pytorch import session_check  # noqa: E402


def optimizer_of(model):
    model(torch.ones(3, 2)).sum().backward()
    return torch.optim.SGD(model.parameters(), 0.1)


@pytest.fixture
def model():
    return nn.Linear(2, 1)


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setattr(session_check.atexit, "register", lambda function: None)
    monkeypatch.setattr(script_end, "_checks", [])
    made = session_check.SessionCheck()
    yield made
    made.opened()
    assert not torchs._global_optimizer_pre_hooks


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(session_check, "current", lambda: SimpleNamespace(mode="pipelined"))


@pytest.mark.usefixtures("job")
def test_a_step_before_any_session_is_refused_in_a_job(check, model):
    check.expect(model)
    before = model.weight.clone()
    with pytest.raises(UsageError, match=r"test_session_check.py:\d+: no Session was opened"):
        optimizer_of(model).step()
    assert torch.equal(model.weight, before)


@pytest.mark.usefixtures("job")
def test_a_script_that_ends_without_a_session_is_refused_in_a_job(check):
    script_end.check_script_end()
    check.expect()
    with pytest.raises(UsageError, match=r"^no Session was opened"):
        script_end.check_script_end()


@pytest.mark.usefixtures("job")
def test_another_models_training_and_steps_behind_a_session_are_plain(check, model):
    check.expect(model)
    optimizer_of(nn.Linear(2, 1)).step()
    check.opened()
    optimizer_of(model).step()
    script_end.check_script_end()


def test_one_warning_without_a_job(check, model, caplog):
    check.expect(model)
    check.expect()
    optimizer = optimizer_of(model)
    optimizer.step()
    optimizer.step()
    script_end.check_script_end()
    check._at_exit()
    (record,) = caplog.records
    assert record.message.endswith("train in a `with cbtorch.Session(...)` block")
