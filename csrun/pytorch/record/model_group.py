"""Several models that one step trains, with the state of their optimizers, as one model."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch


class ModelGroup(torch.nn.Module):
    """Models whose weights the step itself updates, with recorded optimizers.

    The models are named 0, 1 and so on. Weights and the optimizers' tensors are buffers of the
    step, which it reads and writes in any order.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        super().__init__()
        self.models, self.optimizers = tuple(models), tuple(optimizers)
        for number, model in enumerate(models):
            self.add_module(str(number), model)
        self.take_forward()

    def take_forward(self) -> None:
        """Store the models' own forward, before a Session replaces it."""
        self._forwards = [model.forward for model in self.models]

    def forward(self, number: int, *args: Any, **kwargs: Any) -> Any:
        """Call one of the models."""
        return self._forwards[number](*args, **kwargs)

    def is_of(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> bool:
        """True if it consists of exactly these objects."""
        own, given = (*self.models, *self.optimizers), (*models, *optimizers)
        return len(own) == len(given) and all(x is y for x, y in zip(own, given, strict=True))

    @property
    def name_of(self) -> dict[int, str]:
        """Names of the parameters, by id."""
        return {id(parameter): name for name, parameter in self.named_parameters()}

    def hold_state(self, path: str, tensor: torch.Tensor) -> None:
        """Register a tensor of an optimizer's state as a buffer."""
        *modules, name = path.split(".")
        at: torch.nn.Module = self
        for each in modules:
            if each not in at._modules:
                at.add_module(each, torch.nn.Module())
            at = at._modules[each]
        at.register_buffer(name, tensor)

    def states(self) -> Iterator[tuple[torch.optim.Optimizer, torch.Tensor, str, Any]]:
        """Yield the optimizers' states: parameter, name, and value."""
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    yield optimizer, parameter, key, value
