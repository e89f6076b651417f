"""Optimizer classes of scripts: recognized by name, verified, and compared with their own steps."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


class SGD(torch.optim.Optimizer):
    """SGD whose momentum is zero before the first step."""

    def __init__(self, params, lr, momentum=0.0, dampening=0.0):
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": 0.01}
        super().__init__(params, {**options, "nesterov": False, "maximize": False})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad.data + group["weight_decay"] * p.data
                buffer = self.state[p]["momentum_buffer"]
                buffer.mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
                p.data.sub_(group["lr"] * buffer)


class AdamW(torch.optim.Optimizer):
    """Adam that adds epsilon to the uncorrected root, with powers of the betas in its state."""

    scale = 1.0

    def __init__(self, params, lr=0.01, correct_bias=True, weight_decay=0.1, l2=0.0, amsgrad=False):
        options = {"lr": lr, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": weight_decay}
        options |= {"l2_regularization_rate": l2, "correct_bias": correct_bias, "amsgrad": amsgrad}
        super().__init__(params, options)
        for p in self.param_groups[0]["params"]:
            names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if amsgrad else ()))
            self.state[p].update({name: torch.zeros_like(p) for name in names})
            if correct_bias:
                self.state[p]["beta1_power"] = torch.tensor(0.8)
                self.state[p]["beta2_power"] = torch.tensor(0.9)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, group, self.state[p])

    def update(self, p, group, state):
        beta1, beta2 = group["betas"]
        grad = p.grad.data + group["l2_regularization_rate"] * p.data
        state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        square = state["exp_avg_sq"]
        if group["amsgrad"]:
            square = state["max_exp_avg_sq"].copy_(torch.maximum(state["max_exp_avg_sq"], square))
        update = self.scale * state["exp_avg"] / (square.sqrt() + group["eps"])
        if group["correct_bias"]:
            update *= (1 - state["beta2_power"]).sqrt() / (1 - state["beta1_power"])
            state["beta1_power"] *= beta1
            state["beta2_power"] *= beta2
        p.data.sub_(group["lr"] * (update + group["weight_decay"] * p.data))


class Edited(AdamW):
    scale = 1.02


Edited.__name__ = "AdamW"


CASES = {
    "sgd": lambda p: SGD(p, 0.05, momentum=0.9),
    "adamw": AdamW,
    "adamw without correction": lambda p: AdamW(p, correct_bias=False),
    "adam": lambda p: AdamW(p, weight_decay=0.0, l2=0.1),
    "amsgrad": lambda p: AdamW(p, amsgrad=True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loop_is_that_of_the_class_itself(tmp_path, case):
    made = []

    def make(parameters):
        made.append(CASES[case](parameters))
        return made[-1]

    beside(lambda kit: kit.train_once(), tmp_path, optimizer=make, rel=1e-6)
    ours, theirs = ([each.state[p] for p in each.param_groups[0]["params"]] for each in made)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(dict(one), dict(other), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (Edited, "AdamW"),
        (lambda p: SGD(p, 0.05, momentum=0.9, dampening=0.2), "SGD"),  # from the first step on
    ],
)
def test_a_class_that_computes_something_else_is_refused(tmp_path, make, named):
    said = rf"3 steps of .*\.\w+ differ from the rule of {named} by 0\.\d+ of a weight"
    with pytest.raises(UsageError, match=said):
        Kit(optimizer=make).session(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_state_of_another_training_is_loaded_before_the_first_step(tmp_path, case):
    whole, first, second = (Kit(optimizer=CASES[case]) for _ in range(3))
    for kit in (first, second):
        kit.model.load_state_dict(whole.model.state_dict())
    losses = whole.train_once() + whole.train_once()
    found = first.train_once()
    with second.session(tmp_path):
        second.model.load_state_dict(first.model.state_dict())
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        found += second.train_once()
    torch.testing.assert_close(torch.stack(found), torch.stack(losses), rtol=1e-6, atol=1e-7)
