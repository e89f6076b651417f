"""Steps with their own updates: several models, optimizers and backward passes."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch import nn, optim  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import cerebras_torch as cbtorch  # noqa: E402
from csrun.base.errors import UsageError  # noqa: E402


class Pair:
    """Generator and discriminator, in float64."""

    def __init__(self, make=lambda p: optim.Adam(p, 0.01), make_other=None):
        torch.manual_seed(3)
        generator = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh()
        )
        self.g = generator.double()
        self.d = nn.Sequential(nn.Linear(5, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).double()
        self.models = [self.d, self.g]
        self.optimizers = [make(self.d.parameters()), (make_other or make)(self.g.parameters())]
        data = torch.randn(24, 5, dtype=torch.float64)
        self.train = DataLoader(TensorDataset(data), 6)
        self.criterion = nn.BCEWithLogitsLoss()
        self.ones = torch.ones(6, 1, dtype=torch.float64)

    def session(self, folder):
        cbtorch.initialize(model_dir=folder)
        for model in self.models:
            cbtorch.module(model)
        self.train = cbtorch.dataloader(self.train)
        return cbtorch.Session(self.models, self.optimizers, mode="train")

    def noise(self):
        return torch.randn(6, 3, dtype=torch.float64)

    @property
    def state(self):
        state = [x for model in self.models for x in model.state_dict().values()]
        for optimizer in self.optimizers:
            kept = [optimizer.state[p] for g in optimizer.param_groups for p in g["params"]]
            state += [x for each in kept for x in each.values() if isinstance(x, torch.Tensor)]
        return [x.detach().clone() for x in state]


def beside(loop, folder, kit=Pair, **options):
    """Assert equal numbers, weights and optimizer state of a loop on csrun and in plain PyTorch."""
    ours, theirs = kit(**options), kit(**options)
    torch.manual_seed(5)
    with ours.session(folder):
        found = [float(number) for number in loop(ours)]
    torch.manual_seed(5)
    expected = [float(number) for number in loop(theirs)]
    assert expected
    as_tensor = [torch.tensor(x, dtype=torch.float64) for x in (found, expected)]
    torch.testing.assert_close(*as_tensor, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.state, theirs.state, rtol=1e-8, atol=1e-9)
    return ours


def gan(pair):
    """Both optimizers step once per batch; all gradients are cleared before."""
    losses = []
    for _ in range(2):
        for (x,) in pair.train:
            for turn in range(2):
                for optimizer in pair.optimizers:
                    optimizer.zero_grad(set_to_none=turn == 0)
                fake = pair.d(pair.g(pair.noise()))
                loss = pair.criterion(fake, pair.ones * turn)
                loss = loss + pair.criterion(pair.d(x), pair.ones) * (1 - turn)
                loss.backward()
                pair.optimizers[turn].step()
                losses.append(loss.detach())
    return losses


def dcgan(pair):
    """Several backward passes, values read between them, and a fake reused after an update."""
    found = []
    for epoch in range(2):
        for step, (x,) in enumerate(pair.train):
            pair.d.zero_grad()
            real = pair.criterion(pair.d(x), pair.ones)
            real.backward()
            found.append(real.item())
            fake = pair.g(pair.noise())
            of_fake = pair.criterion(pair.d(fake.detach()), 0 * pair.ones)
            of_fake.backward()
            pair.optimizers[0].step()
            pair.g.zero_grad()
            loss = pair.criterion(pair.d(fake), pair.ones)
            loss.backward()
            found += [pair.d[0].weight.grad.norm().item(), (real + of_fake).item()]
            pair.optimizers[1].step()
            found.append(loss.detach())
            if epoch and not step:
                found.append(pair.g(torch.ones(6, 3, dtype=torch.float64)).detach().sum())
        assert pair.g.state_dict()["3.weight"].abs().sum() > 0
    return found


def wasserstein(pair):
    """Gradient penalty, clipped weights, and a generator trained in some steps only."""
    found = []
    schedule = optim.lr_scheduler.ExponentialLR(pair.optimizers[0], 0.9)
    for _ in range(2):
        for step, (x,) in enumerate(pair.train):
            pair.optimizers[0].zero_grad()
            fake = pair.g(pair.noise())
            mixed = (0.5 * x + 0.5 * fake.detach()).requires_grad_(True)
            score = pair.d(mixed).tanh()
            (slope,) = torch.autograd.grad(
                score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True
            )
            (-pair.d(x).mean()).backward()
            pair.d(fake.detach()).mean().backward()
            ((slope.norm(2, dim=1) - 1) ** 2).mean().backward()
            nn.utils.clip_grad_norm_(pair.d.parameters(), 0.5)
            pair.optimizers[0].step()
            with torch.no_grad():
                for p in pair.d.parameters():
                    p.clamp_(-0.3, 0.3)
            if step % 2:
                pair.optimizers[1].zero_grad()
                loss = -pair.d(fake).mean()
                loss.backward()
                pair.optimizers[1].step()
                found.append(loss.item())
        schedule.step()
        pair.g.eval()
        with torch.no_grad():
            found.append(pair.g(torch.ones(2, 3, dtype=torch.float64)).sum())
        pair.g.train()
    return found


@pytest.mark.parametrize("loop", [dcgan, wasserstein], ids=lambda loop: loop.__name__)
def test_models_that_train_each_other_have_pytorchs_numbers(loop, tmp_path):
    beside(loop, tmp_path)


def test_two_kinds_of_optimizers_train_one_model_each(tmp_path):
    sgd = {"make": lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01)}
    beside(gan, tmp_path, **sgd, make_other=lambda p: optim.RMSprop(p, 0.01, momentum=0.5))


def test_a_run_goes_on_where_it_ended(tmp_path):
    def one_pass(pair):
        return gan_of(pair, 1)

    def gan_of(pair, passes):
        losses = []
        for _ in range(passes):
            for (x,) in pair.train:
                pair.optimizers[0].zero_grad()
                loss = pair.criterion(pair.d(x), pair.ones) + pair.d(pair.g(pair.noise())).mean()
                loss.backward()  # the generator's gradients are of earlier steps, too
                pair.optimizers[0].step()
                pair.optimizers[1].zero_grad()
                pair.d(pair.g(pair.noise())).mean().backward()
                pair.optimizers[1].step()
                losses.append(loss.item())
        return losses

    beside(one_pass, tmp_path)
    beside(lambda pair: gan_of(pair, 3), tmp_path)


class Distilled(Pair):
    """Student, teacher by moving average, and a loss with a parameter."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.d)
        self.scale = nn.Bilinear(1, 1, 1).double()
        self.models = [self.d, self.teacher, self.scale]
        params = [*self.d.parameters(), *self.scale.parameters()]
        self.optimizers = [optim.AdamW(params, 0.02)]


def test_a_teacher_and_a_loss_with_parameters(tmp_path):
    def loop(kit):
        losses = []
        for _ in range(2):
            for (x,) in kit.train:
                kit.optimizers[0].zero_grad()
                with torch.no_grad():
                    target = kit.teacher(x)
                loss = kit.scale(kit.d(x), target).square().mean()
                loss.backward()
                kit.optimizers[0].step()
                with torch.no_grad():
                    pairs = zip(kit.teacher.parameters(), kit.d.parameters(), strict=True)
                    for own, new in pairs:
                        own.mul_(0.9).add_(new, alpha=0.1)
                losses.append(loss.detach())
        return losses

    beside(loop, tmp_path, kit=Distilled)


def test_gradients_of_the_step_before_are_refused(tmp_path):
    pair = Pair()
    said = r"test_updating_loop.py:\d+: a gradient belongs to an earlier step: call zero_grad"
    with pytest.raises(UsageError, match=said), pair.session(tmp_path):
        for (x,) in pair.train:
            if pair.d[0].weight.grad is None:
                pair.d(x).mean().backward()
            pair.g(pair.noise()).mean().backward()
            pair.optimizers[0].step()


@pytest.mark.parametrize(
    "use",
    [
        lambda models: nn.utils.clip_grad_norm_([p for m in models for p in m.parameters()], 0.2),
        lambda models: models[0][0].weight.grad.norm().item(),
    ],
    ids=["clip", "read"],
)
def test_a_gradient_added_to_that_of_the_step_before_is_not_read(use, tmp_path):
    pair = Pair()
    said = r"test_updating_loop.py:\d+: a gradient belongs to an earlier step: call zero_grad"
    with pytest.raises(UsageError, match=said), pair.session(tmp_path):
        for _ in pair.train:
            pair.optimizers[1].zero_grad()
            pair.d(pair.g(pair.noise())).mean().backward()
            use(pair.models)
            pair.optimizers[1].step()


def test_a_gradient_added_to_that_of_the_step_before_may_be_cleared(tmp_path):
    def loop(pair):
        losses = []
        for step, (x,) in enumerate(pair.train):
            pair.optimizers[1].zero_grad()
            loss = pair.d(pair.g(pair.noise())).square().mean()
            loss.backward()
            pair.optimizers[1].step()
            pair.optimizers[0].zero_grad(set_to_none=step % 2 == 0)
            pair.d(x).mean().backward()
            losses += [loss.detach(), pair.d[0].weight.grad.norm().item()]
            nn.utils.clip_grad_norm_(pair.d.parameters(), 0.2)
            pair.optimizers[0].step()
        return losses

    beside(loop, tmp_path)


def test_a_parameter_of_no_model_is_refused(tmp_path):
    pair = Pair()
    pair.models = [pair.g]
    with pytest.raises(UsageError, match=r"optimizer 0 of the Session has a parameter that"):
        pair.session(tmp_path)


def test_several_models_are_not_evaluated_together(tmp_path):
    pair = Pair()
    pair.session(tmp_path)
    with pytest.raises(UsageError, match='several models need mode="train"'):
        cbtorch.Session(pair.models, mode="eval")


def test_gradients_may_be_set_to_none_by_the_loop(tmp_path):
    def loop(pair):
        losses = []
        for (x,) in pair.train:
            for turn, model in enumerate((pair.d, pair.g)):
                others = pair.g if turn == 0 else pair.d
                others.requires_grad_(False)
                loss = pair.d(pair.g(pair.noise())).square().mean() + pair.d(x).mean()
                for parameter in model.parameters():  # as a wrapper's zero_grad() does
                    parameter.grad = None
                loss.backward()
                pair.optimizers[turn].step()
                others.requires_grad_(True)
                losses.append(loss.detach())
        return losses

    beside(loop, tmp_path)


def test_the_loop_writes_values_of_the_step_into_a_buffer_and_an_optimizers_state(tmp_path):
    """As a center of outputs, and Sophia's Hessian."""

    def loop(pair):
        losses = []
        for (x,) in pair.train:
            out = pair.d(x)
            loss = (out - pair.d.mean).square().mean()
            losses.append(loss.detach())
            pair.optimizers[0].zero_grad()
            loss.backward()
            pair.optimizers[0].step()
            with torch.no_grad():
                pair.d.mean.mul_(0.5).add_(out.mean(0), alpha=0.5)
                state = pair.optimizers[0].state[pair.d[2].weight]
                state["exp_avg_sq"].add_(pair.d[2].weight.grad.square())
        return losses

    class WithMean(Pair):
        def __init__(self, **options):
            super().__init__(**options)
            self.d.register_buffer("mean", torch.zeros(1, dtype=torch.float64))
            self.models, self.optimizers = [self.d], self.optimizers[:1]

    beside(loop, tmp_path, kit=WithMean)


def test_an_update_without_a_loss_is_refused(tmp_path):
    kit = Pair()
    said = "has not called backward\\(\\), so it has no loss: call backward\\(\\) on the loss"
    with pytest.raises(UsageError, match=said), kit.session(tmp_path):
        for (x,) in kit.train:
            weights = list(kit.d.parameters())
            found = torch.autograd.grad(kit.criterion(kit.d(x), kit.ones), weights)
            for weight, gradient in zip(weights, found, strict=True):
                weight.grad = gradient
            kit.optimizers[0].step()
