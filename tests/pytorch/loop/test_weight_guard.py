"""Uses of the model's own Parameters by a loop, outside of its steps."""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.eight_steps import Script, norms  # noqa: E402
from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def test_parameters_that_the_loop_reads_are_those_of_the_step(tmp_path):
    """In recorded steps and in steps ahead of the wafer; also through torch's helpers."""
    ours, theirs = Script(), Script()
    averages = [
        AveragedModel(s.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for s in (ours, theirs)
    ]

    def look(script, averaged, step, _):
        averaged.update_parameters(script.model)
        return norms(script) if step != 5 else []

    with ours.session(tmp_path):
        found = ours.loop(lambda *given: look(ours, averages[0], *given))
    expected = theirs.loop(lambda *given: look(theirs, averages[1], *given))
    assert expected[0] != expected[1]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    for one, other in zip(*(a.parameters() for a in averages), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.tolist(),
        lambda x: float(repr(x).split("[")[1].split(",")[0]),
        lambda x: pickle.loads(pickle.dumps(x)).tolist(),
    ],
    ids=["tolist", "repr", "pickle"],
)
def test_parameters_and_buffers_that_no_operator_reads_are_those_of_the_step(tmp_path, read):
    ours, theirs = Script(), Script()
    for script in (ours, theirs):
        script.model.insert(1, nn.BatchNorm1d(9).double())

    def look(script):
        return lambda *_: [read(script.model[1].running_mean), read(script.model[3].bias)]

    with ours.session(tmp_path):
        found = ours.loop(look(ours))
    assert not hasattr(torch.Tensor.__repr__, "__wrapped__")  # PyTorch's own again
    assert "tolist" not in vars(torch.Tensor)
    expected = theirs.loop(look(theirs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("at", [1, 6])
@pytest.mark.parametrize(
    "write",
    [
        lambda p: p.data.clamp_(-1, 1),
        lambda p: setattr(p, "data", p.data.clamp(-0.1, 0.1)),
        lambda p: nn.init.zeros_(p),
        lambda p: p.detach()[0].fill_(0.0),
    ],
)
def test_parameters_that_the_loop_writes_are_those_of_the_next_step(tmp_path, at, write):
    ours, theirs = Script(), Script()

    def after(script):
        def write_once(step, _):
            if step == at:
                write(script.model[0].weight)

        return write_once

    with ours.session(tmp_path):
        ours.loop(after(ours))
    theirs.loop(after(theirs))
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def double(array):
    array[...] *= 2


@pytest.mark.parametrize("at", [1, 6])
@pytest.mark.parametrize(
    "write",
    [
        lambda model: double(model[0].weight.detach().numpy()),
        lambda model: double(np.asarray(model[0].weight.data)[0]),
        lambda model: double(np.from_dlpack(model[1].running_mean)),
        lambda model: double(model[-1].columns.numpy()[:2]),
    ],
)
def test_arrays_of_weights_and_buffers_may_be_written_before_the_next_step(tmp_path, at, write):
    def loop(script):
        def write_once(step, logits):
            if step == at:
                write(script.model)
            return logits.detach()

        return script.loop(write_once)

    ours, theirs = Script(), Script()
    for script in (ours, theirs):
        script.model.insert(1, nn.BatchNorm1d(9).double())
        script.model.append(Picks())
    with ours.session(tmp_path):
        found = loop(ours)
    for one, other in zip(found, loop(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    for one, other in zip(
        ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_an_array_of_weights_of_skipped_steps_is_refused(tmp_path):
    first = Script()
    with pytest.raises(KeyError), first.session(tmp_path):
        first.loop(lambda step, _: {}["none"] if step == 7 else None)
    again = Script()
    said = r"step [0-9] ran in an earlier run"
    with pytest.raises(UsageError, match=said), again.session(tmp_path):
        again.loop(lambda step, _: again.model[0].weight.data.numpy().sum())


@pytest.mark.parametrize("at", [1, 6, 8])
@pytest.mark.parametrize(
    "replace",
    [
        lambda layer: setattr(layer.weight, "data", layer.weight.data[:4]),
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.zeros(9, 6).double())),
        lambda layer: delattr(layer, "weight"),
        lambda layer: layer.load_state_dict(nn.Linear(6, 9).double().state_dict(), assign=True),
    ],
)
def test_parameters_that_the_loop_replaces_are_refused(tmp_path, at, replace):
    """After the last step, too: the run's checkpoint would differ from the model."""
    script = Script()

    def after(step, _):
        if step == at:
            replace(script.model[0])

    said = r"(eight_steps|test_weight_guard).py:[0-9]+: 0.weight was replaced by another tensor"
    with pytest.raises(UsageError, match=said), script.session(tmp_path):
        script.loop(after)


@pytest.mark.parametrize(
    ("at", "write"),
    [
        ("before a batch", lambda p: p.detach().mul_(0.9)),
        ("behind a batch", torch.no_grad()(lambda p: p.mul_(0.9))),
        ("behind a loss", lambda p: p.data.t()[:3].clamp_(-0.1, 0.1)),
    ],
)
def test_a_run_that_failed_after_a_write_resumes_before_it(tmp_path, at, write):
    """The checkpoint is of the step before the write, which the resumed loop repeats."""

    def loop(script, fails):
        for step, (x, y) in enumerate(script.train, 1):
            if fails and step == 7 and at != "before a batch":
                if at == "behind a loss":
                    script.criterion(script.model(x), y).item()
                raise KeyError("for the test")
            script.optimizer.zero_grad()
            script.criterion(script.model(x), y).backward()
            script.optimizer.step()
            write(script.model[0].weight)
            if fails and step == 7:
                raise KeyError("for the test")

    ours, theirs = Script(), Script()
    with pytest.raises(KeyError), ours.session(tmp_path):
        loop(ours, fails=True)
    again = Script()
    with again.session(tmp_path):
        loop(again, fails=False)
    loop(theirs, fails=False)
    for one, other in zip(again.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


class Picks(nn.Module):
    """Module that selects columns by an integer buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("columns", torch.tensor([0, 1, 2, 3]))

    def forward(self, x):
        return x[:, self.columns]


@pytest.mark.parametrize("at", [1, 2, 6])
def test_an_integer_buffer_that_the_loop_writes_is_that_of_the_next_step(tmp_path, at):
    def loop(script):
        def write(step, logits):
            if step == at:
                script.model[3].columns[0] = 3
            return logits.detach()

        return script.loop(write)

    ours, theirs = Script(), Script()
    for script in (ours, theirs):
        script.model.append(Picks())
    with ours.session(tmp_path):
        found = loop(ours)
    for one, other in zip(found, loop(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_buffer_that_the_loop_replaces_is_refused(tmp_path):
    script = Script()
    script.model.insert(1, nn.BatchNorm1d(9).double())

    def after(step, _):
        if step == 6:
            script.model[1].running_mean = torch.ones(9).double()

    with pytest.raises(UsageError, match="running_mean was replaced"), script.session(tmp_path):
        script.loop(after)


def test_a_value_read_after_weights_is_computed_with_earlier_ones(tmp_path):
    """The first steps compute it on the host, where weights have changed since."""
    ours, theirs, found, expected = Script(), Script(), [], []

    def after(script, sums):
        def read(step, logits):
            norms(script)
            sums.append(logits.sum().item())

        return read

    with ours.session(tmp_path):
        ours.loop(after(ours, found))
    theirs.loop(after(theirs, expected))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_weights_of_steps_that_an_earlier_run_has_taken_are_refused(tmp_path):
    """They no longer exist: a saved state would be the first one, over a good file."""
    first, saved = Script(), []

    def stop(step, _):
        norms(first)
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), first.session(tmp_path):
        first.loop(stop)
    again = Script()
    said = r"step [0-9] ran in an earlier run"
    with pytest.raises(UsageError, match=said), again.session(tmp_path):
        again.loop(lambda step, _: again.model.state_dict() if step == 2 else None)

    last = Script()

    def save(step, _):
        if not session.is_replayed:
            saved.append((step, {k: v.clone() for k, v in last.model.state_dict().items()}))

    with last.session(tmp_path) as session:
        last.loop(save)
    plain = Script()
    expected = plain.loop(lambda *_: {k: v.clone() for k, v in plain.model.state_dict().items()})
    assert [step for step, _ in saved] == list(range(saved[0][0], 9))
    for step, state in saved:
        for name, value in state.items():
            torch.testing.assert_close(value, expected[step - 1][name], rtol=1e-12, atol=1e-14)


def test_a_layer_that_is_called_with_gradients_beside_the_model_is_refused(tmp_path):
    script = Script()
    said = r"test_weight_guard.py:[0-9]+: linear takes a weight of the model"
    with pytest.raises(UsageError, match=said), script.session(tmp_path):
        for step, (x, y) in enumerate(script.train):
            script.update(script.criterion(script.model(x), y))
            if step == 5:
                script.model[0](x).sum().item()


@pytest.mark.parametrize("every", [1, 5])
def test_layers_called_outside_the_model_have_current_weights(tmp_path, every):
    """After the update, and in an evaluation; from the first step on, or in later ones only."""

    def loop(kit):
        found = []
        for epoch in range(2):
            for step, (x, y) in enumerate(kit.train):
                x = x * 2
                found.append(kit.update(kit.criterion(kit.model(x), y)))
                with torch.no_grad():
                    if (step + 1) % every == 0:
                        found.append(kit.model[2](kit.model[1](kit.model[0](x))).square().sum())
            with torch.no_grad():
                for step, (x, y) in enumerate(kit.val):
                    found.append(kit.criterion(kit.model(x), y))
                    if (step + 1 + epoch) % every == 0:
                        found.append(kit.model[0](x).norm())
        return found

    beside(loop, tmp_path)


def test_weights_are_read_and_written_after_a_pass_that_is_not_read_to_its_end(tmp_path):
    def loop(kit):
        found = []
        for _ in range(6):
            kit.model.train()
            for x, y in kit.train:
                kit.update(kit.criterion(kit.model(x), y))
            kit.model.eval()
            passing, batches = iter(kit.val), len(kit.val)
            with torch.no_grad():
                for _ in range(batches):  # as wrappers count them
                    x, y = next(passing)
                    found.append(kit.criterion(kit.model(x), y))
            found.append(kit.model.state_dict()["0.weight"].norm().item())
            with torch.no_grad():
                kit.model[0].weight.mul_(0.9)
        return found

    beside(loop, tmp_path)


def test_an_average_is_evaluated_on_a_loader_with_a_short_last_batch(tmp_path):
    def loop(kit):
        average, found = AveragedModel(kit.model), []
        for _ in range(2):
            kit.model.train()
            for x, y in kit.train:
                kit.update(kit.criterion(kit.model(x), y))
                average.update_parameters(kit.model)
            for model in (kit.model, average):
                model.eval()
                with torch.no_grad():
                    for x, y in kit.val:
                        loss = kit.criterion(model(x), y)
                        found.append(loss if model is kit.model else loss.item())
        return found

    class Short(Kit):
        def __init__(self):
            super().__init__()
            self.val = DataLoader(self.val.dataset, 6)  # 6, 6, 6 and 2 samples

    beside(loop, tmp_path, kit=Short)
