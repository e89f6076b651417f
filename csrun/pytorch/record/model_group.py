"""Several models that one step trains, with the state of their optimizers, as one model."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from csrun.pytorch.record.held_states import HeldStates


class ModelGroup(torch.nn.Module):
    """Models whose weights the step itself updates, with recorded optimizers.

    The models are named 0, 1 and so on. Weights and the optimizers' tensors are buffers of the
    step, which it reads and writes in any order.

    states: of the optimizers.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        super().__init__()
        self.models, self.optimizers = tuple(models), tuple(optimizers)
        self.states = HeldStates(self, self.optimizers)
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


def wrapped_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers that an optimizer has as attributes, and those that they wrap."""
    for each in vars(optimizer).values():
        if isinstance(each, torch.optim.Optimizer):
            yield each
            yield from wrapped_by(each)
