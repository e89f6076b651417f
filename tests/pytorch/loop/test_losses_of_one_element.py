"""Losses of one element with axes, against the same loops in PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402

SHAPES = {"1": (1,), "1x1": (1, 1)}
SETTINGS = {"parts": {"micro_batch_size": 4}, "recorded": {"fast": False}}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_loss_keeps_its_shape_for_the_loop(tmp_path, shape):
    def loop(kit):
        found = []
        for step, (x, y) in enumerate(kit.train):
            loss = kit.criterion(kit.model(x), y).reshape(shape)
            kit.update(loss)
            assert loss.shape == shape
            assert loss.detach().numpy().shape == shape
            with pytest.raises(TypeError, match="format"):
                f"{loss:.3f}"
            values = torch.cat([loss.detach() * 2, torch.ones(shape)])
            assert values.shape == (2, *shape[1:])
            found += [loss.item(), *values.flatten().tolist(), step * loss.detach()]
        return found

    beside(loop, tmp_path)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_losses_of_parts_and_of_recorded_steps(tmp_path, settings):
    def loop(kit):
        return [kit.update(kit.criterion(kit.model(x), y)[None]) for x, y in kit.train]

    beside(loop, tmp_path, settings=settings)


def test_terms_are_added_to_a_created_tensor(tmp_path):
    """Penalty on the parameters of `kit.model[0]`, as in DeepCTR."""

    def loop(kit):
        found = []
        for x, y in kit.train:
            out, loss, norms = kit.model(x), torch.zeros(1).double(), torch.zeros((1,)).double()
            for parameter in kit.model[0].parameters():
                norms += 0.01 * parameter.square().sum()
            loss += kit.criterion(out, y)
            found += kit.update(loss * 0.5 + norms).tolist()
        return found

    beside(loop, tmp_path)


def test_losses_of_accumulated_gradients(tmp_path):
    def loop(kit):
        found = []
        for step, (x, y) in enumerate(kit.train):
            loss = kit.criterion(kit.model(x), y).view(1) / 2
            loss.backward()
            if step % 2:
                kit.optimizer.step()
                kit.optimizer.zero_grad()
            found.append(loss.detach())
        return found

    beside(loop, tmp_path)


class ScaledKit(Kit):
    """Kit with PyTorch's GradScaler, which has no effect on the CPU."""

    def update(self, loss):
        if not hasattr(self, "scaler"):
            self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def test_a_scaled_loss(tmp_path):
    def loop(kit):
        return [kit.update(kit.criterion(kit.model(x), y).reshape(1)) for x, y in kit.train]

    beside(loop, tmp_path, kit=ScaledKit)
