"""The script's DataLoader: each step ends with the calls that were deferred to its end."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader as TorchLoader

from csrun.pytorch import user
from csrun.pytorch.framework.rates import RateTracker
from csrun.pytorch.framework.script import end_step, script
from csrun.pytorch.framework.step_compile import open_session


class DataLoader(user.SessionLoader):
    """Wrapper of the script's DataLoader."""

    @property
    def _loader(self) -> TorchLoader[Any]:
        return self.loader

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of a pass; after each, make the deferred calls of its step."""
        state = script.state
        open_session(self)
        for batch in super().__iter__():
            state.rate_tracker = state.rate_tracker or RateTracker()
            state.is_inside_execution_loop = True
            rows = (x.shape[0] for x in tree_leaves(batch) if _has_rows(x))
            state.rate_tracker.add(next(rows, 0))
            yield batch
            end_step()
        state.is_inside_execution_loop = False


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and len(leaf.shape) > 0


def dataloader(loader: TorchLoader[Any], use_parallel_loader: bool = True) -> DataLoader:
    """Wrap a DataLoader. use_parallel_loader: has no effect, the streamers make its batches."""
    return user.wrap(loader, DataLoader)
