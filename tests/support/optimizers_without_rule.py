"""Optimizers without a rule, each with another form of state or update."""

from collections import deque

import torch
from torch import optim


class Decaying(optim.Optimizer):
    """Optimizer that counts its steps by a Python number."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"], state["mean"] = 0, torch.zeros_like(p)
                state["count"] += 1
                state["mean"].mul_(0.9).add_(p.grad)
                p.add_(state["mean"], alpha=-group["lr"] / state["count"])


class OfLists(optim.Optimizer):
    """Optimizer that updates all parameters at once, scaled by the norms of their gradients."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.means = [torch.zeros_like(p) for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        gradients = [p.grad for p in group["params"]]
        for p, mean in zip(group["params"], self.means, strict=True):
            self.state[p]["mean"] = mean
        torch._foreach_lerp_(self.means, gradients, 0.1)
        scales = torch._foreach_norm(gradients)
        torch._foreach_add_(scales, 1.0)
        torch._foreach_addcdiv_(group["params"], self.means, scales, value=-group["lr"])


class FromFirst(optim.Optimizer):
    """Optimizer that starts from the first gradient and a filled tensor, replaces state tensors,

    and keeps lists of them and values of its own.
    """

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "steps": []})
        self.total, self.norm = None, torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def step(self, closure=None, scale=2.0):
        (group,) = self.param_groups
        group["steps"].append(scale)
        norm = torch.stack([p.grad.norm() for p in group["params"]]).sum()
        self.total = norm if self.total is None else 0.5 * self.total + norm
        self.norm.lerp_(norm, 0.5)
        for p in group["params"]:
            state = self.state[p]
            if not state:
                state["before"], state["means"] = p.grad.clone(), [torch.zeros_like(p), 0]
                state["size"] = torch.empty_like(p).fill_(0.1)
            state["means"][0].lerp_(p.grad, 0.2)
            state["size"], change = state["size"] + p.grad.abs(), p.grad - state["before"]
            state["before"] = p.grad.clone()
            size = state["size"] + self.total + self.norm + len(group["steps"])
            p.sub_(group["lr"] * scale * (state["means"][0] + change) / size)


class OfEach(optim.Optimizer):
    """Optimizer that calls `one` for each parameter with its state."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                self.one(p, p.grad, self.state[p], group)


class Adopting(OfEach):
    """Optimizer with another first step, as ADOPT; its count is a replaced tensor, as in LaProp."""

    def one(self, p, g, state, group):
        if not state:
            state["square"], state["count"] = g * g, torch.tensor(1.0)
            return
        p.addcdiv_(g, state["square"].sqrt(), value=-group["lr"] / state["count"].item())
        state["square"].mul_(0.9).addcmul_(g, g, value=0.1)
        state["count"] = state["count"] + 1


class Replacing(OfEach):
    """Optimizer that creates new state tensors, some in a list, and others from step three on."""

    def one(self, p, g, state, group):
        state["means"] = [0.9 * state["means"][0] + g if "means" in state else g.clone()]
        total = state.setdefault("total", torch.zeros([], dtype=p.dtype))
        total += g.norm()
        p.sub_(group["lr"] * state["means"][0] / total)
        if group["count"] % 3 == 0:  # as Lookahead
            slow = state.setdefault("slow", p.clone())
            p.copy_(slow.lerp_(p, 0.5))


class Moving(OfEach):
    """Optimizer that moves state tensors to other keys and indices, and replaces one."""

    def one(self, p, g, state, group):
        if not state:
            state["last"], state["before"] = torch.zeros_like(p), torch.zeros_like(p)
            state["list"] = [torch.zeros_like(p) for _ in range(3)]
            state["pair"] = (torch.zeros_like(p), 0)
            state["all"], state["sum"] = deque(maxlen=3), torch.zeros(p.shape, dtype=p.dtype)
        kept = [state["last"] + 2 * state["before"], state["list"][2], *state["all"], state["sum"]]
        kept.append(state["pair"][0])
        p.sub_(group["lr"] * (g + sum(x / (n + 2) for n, x in enumerate(kept))))
        state["pair"] = (state["before"], 0)
        state["before"], state["last"] = state["last"], g.clone()
        state["list"].insert(0, g.clone())
        del state["list"][3:]
        state["all"].appendleft(g * group["count"])
        if group["count"] % 3 == 0:
            state["sum"] = torch.zeros(p.shape, dtype=p.dtype)
        state["sum"].add_(g)


class FromWeights(OfEach):
    """Optimizer that starts from weights and random numbers, with a count outside of `state`."""

    def step(self, closure=None):
        self.state["steps"] = self.state.get("steps", 0) + 1
        super().step()

    def one(self, p, g, state, group):
        if not state:
            state["weights"], state["scale"] = p.clone(), torch.rand_like(p)
        p.data = p.data - group["lr"] * g * state["scale"] / self.state["steps"]
        p.lerp_(state["weights"].lerp_(p, 0.5), 0.2)


class OfSigns(OfEach):
    """Optimizer with booleans in its state."""

    def one(self, p, g, state, group):
        p.sub_(group["lr"] * g * state.get("is_up", 1))
        state["is_up"] = g > 0


class Wrapping(optim.Optimizer):
    """Optimizer whose state is in the optimizer that it wraps."""

    def __init__(self, params):
        self.wrapped = Replacing(params)
        super().__init__(self.wrapped.param_groups, {})

    def step(self, closure=None):
        buffer = torch.zeros(())
        self.wrapped.step()
        return buffer.add_(self.param_groups[0]["params"][0].grad.norm())


CASES = {
    "Adopting": Adopting,
    "Moving": Moving,
    "Wrapping": Wrapping,
    "Rprop": lambda p: optim.Rprop(p, 0.01),
    "ASGD": lambda p: optim.ASGD(p, 0.05, weight_decay=0.1, t0=3),  # averages from step 3 on
    "ASGD of lists": lambda p: optim.ASGD(p, 0.05, t0=3, foreach=True),
    "Rprop of lists": lambda p: optim.Rprop(p, 0.01, foreach=True),
    "OfLists": lambda p: OfLists(p, 0.1),
    "Adafactor": lambda p: optim.Adafactor(p, 0.05),
    "Decaying": lambda p: Decaying(p, 0.1),
    "FromFirst": lambda p: FromFirst(p, 0.3),
}
