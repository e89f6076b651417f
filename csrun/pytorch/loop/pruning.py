"""Refusal of torch.nn.utils.prune in a Session's block, since it replaces tensors of the model."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.utils import prune

from csrun.base.errors import UsageError
from csrun.pytorch.errors import call_for_user, user_line

_Modules = Callable[..., Iterable[torch.nn.Module]]


@contextmanager
def pruning_refused(model: torch.nn.Module, has_begun: Callable[[], bool]) -> Iterator[None]:
    """Context manager in which a model that has begun to train cannot be pruned."""
    own = {id(module) for module in model.modules()}

    def checked(function: Callable[..., Any], modules: _Modules) -> Callable[..., Any]:
        @wraps(function)
        def check(*args: Any, **kwargs: Any) -> Any:
            if has_begun() and not own.isdisjoint(map(id, modules(*args, **kwargs))):
                raise _pruned()
            return call_for_user(function, args, kwargs)

        return check

    method = prune.BasePruningMethod
    apply = checked(method.__dict__["apply"].__func__, lambda cls, module, *_, **__: [module])
    remove = checked(method.remove, lambda method, module: [module])
    of_many = checked(prune.global_unstructured, _modules_of_many)
    with ExitStack() as opened:
        opened.enter_context(patch.object(method, "apply", classmethod(apply)))
        opened.enter_context(patch.object(method, "remove", remove))
        opened.enter_context(patch.object(prune, "global_unstructured", of_many))
        yield


def _modules_of_many(parameters_to_prune: Any, *_: Any, **__: Any) -> list[torch.nn.Module]:
    return [module for module, _ in parameters_to_prune]


def _pruned() -> UsageError:
    return UsageError(
        f"{user_line()}: torch.nn.utils.prune replaces tensors of the model in the Session's "
        "block: call prune.identity(module, name) before the first Session, and write masks "
        "between steps by module.weight_mask.copy_(mask)"
    )
