"""Groups of models and optimizers that Sessions train together."""

from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.deferred_init.tape import is_on_meta
from csrun.pytorch.optimizers.recorded_updates import RecordedUpdates
from csrun.pytorch.record.model_group import ModelGroup, wrapped_by
from csrun.pytorch.user import require_module


class TrainedGroup(ModelGroup):
    """A group with its updates. Sessions of the same models and optimizers share it.

    families: ids of each of the Session's optimizers and of those that it wraps.
    """

    updates: RecordedUpdates
    families: list[set[int]]


_groups: list[TrainedGroup] = []


def group_of(models: Any, optimizers: Any, mode: str, line: str) -> TrainedGroup:
    """Return the group of a Session's models and optimizers.

    Raises: UsageError for models or optimizers that cannot be trained together
    """
    optimizers = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
    if mode != "train" or not all(isinstance(x, torch.optim.Optimizer) for x in optimizers):
        raise UsageError(
            f'{line}: Session: several models need mode="train" and a list of optimizers of '
            "torch.optim; evaluate each model in a Session of its own"
        )
    if any(isinstance(each, torch.optim.SparseAdam) for each in optimizers):
        raise UsageError(
            f"{line}: Session: SparseAdam needs sparse gradients, and all gradients on the system "
            "are dense: use torch.optim.Adam"
        )
    for model in models:
        if is_on_meta(require_module(model, line)):
            raise UsageError(
                f"{line}: Session: a model built under cbtorch.meta_init() must be the only one"
            )
    families = [{id(one), *map(id, wrapped_by(one))} for one in optimizers]
    inner = [each for one in optimizers for each in wrapped_by(one)]
    optimizers += [each for each in inner if not any(each is one for one in optimizers)]
    found = next((group for group in _groups if group.is_of(models, optimizers)), None)
    if found is None:
        found = TrainedGroup(models, optimizers)
        found.updates, found.families = RecordedUpdates(found), families
        _groups.append(found)
    return found
