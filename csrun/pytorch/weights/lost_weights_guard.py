"""Guard on weights after a replayed Session whose checkpoint is deleted: reads are refused."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from csrun.pytorch.deferred_init.tape import address
from csrun.pytorch.errors import call_for_user, is_users_call
from csrun.pytorch.weights.hidden_reads import hidden_reads


class LostWeightsGuard(TorchDispatchMode):
    """Dispatch mode in which user code must not read a model's tensors or its optimizer's state.

    Writes are allowed: the next Session starts from the newest checkpoint. refuse: raises the
    error.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        refuse: Callable[[], object],
    ) -> None:
        super().__init__()
        named = (*model.parameters(), *model.buffers())
        self._memories = {address(tensor) for tensor in named if tensor.numel()}
        self._optimizer, self._refuse = optimizer, refuse
        self._open = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        hook = self._optimizer.register_state_dict_pre_hook(lambda _: self._refuse())
        self._open.callback(hook.remove)
        self._open.enter_context(hidden_reads(self._refuse_read, self._refuse_read))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()
        super().__exit__(*error)

    def _refuse_read(self, tensor: torch.Tensor) -> None:
        if address(tensor) in self._memories:
            self._refuse()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator that does not read one of the tensors."""
        kwargs = kwargs or {}
        read = args[1:] if func._schema.is_mutable else args
        found = [leaf for leaf in tree_leaves((read, kwargs)) if isinstance(leaf, torch.Tensor)]
        if found and is_users_call():
            for tensor in found:
                self._refuse_read(tensor)
        return call_for_user(func, args, kwargs)
