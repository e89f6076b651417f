"""Lamb as a torch optimizer (torch.optim has none), and its rule."""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch

from csrun.cirh.algorithms import Algorithm, LambAttr
from csrun.pytorch.optimizers.adam import AdamRule
from csrun.pytorch.optimizers.base import Group, GroupNumbers


class Lamb(torch.optim.Optimizer):
    """Adam with layer-wise scaled updates, for large batches.

    u = m / (sqrt(v) + eps) + weight_decay w, m and v as in Adam; w = w - lr (|w| / |u|) u, with
    norms over the whole parameter; where one of them is zero the ratio is one. Outside a Session it
    runs in PyTorch.

    Raises: ValueError for an option out of range
    Source: You et al. 2020, algorithm 2
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
    ) -> None:
        for name, number in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not number >= 0:
                raise ValueError(f"Lamb: {name} must be at least 0, got {number}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Lamb: betas must be from 0 to below 1, got {betas}")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "bias_correction": bias_correction})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update each parameter that has a gradient; return the closure's loss, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: Group) -> None:
        state, gradient = self.state[parameter], parameter.grad
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = map(torch.zeros_like, (parameter, parameter))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        bias1 = bias2 = 1.0
        if group["bias_correction"]:
            bias1, bias2 = (1 - beta ** state["step"].item() for beta in (beta1, beta2))
        update = mean / bias1 / ((square / bias2).sqrt() + group["eps"])
        update.add_(parameter, alpha=group["weight_decay"])
        weight_norm, update_norm = parameter.norm(), update.norm()
        has_norms = (weight_norm > 0) & (update_norm > 0)
        ratio = torch.where(has_norms, weight_norm / update_norm, 1.0)
        parameter.sub_(update.mul_(group["lr"] * ratio))


class LambRule(AdamRule):
    """Lamb, with the moments of Adam."""

    kind = Lamb
    fixed = ("betas", "eps", "bias_correction")
    cycled = None

    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        corrected = group["bias_correction"]
        return LambAttr.of(each.rate, group["betas"], group["eps"], corrected, each.decay)


RULES = (LambRule(),)
