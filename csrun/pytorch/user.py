"""Wrappers of the user's model and DataLoaders: `module` and `dataloader`."""

import gc
import logging
import sys
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset

from csrun.base.errors import UsageError
from csrun.data.errors import PassEndedError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loader import (
    BatchTensors,
    DataChanges,
    PassOrders,
    batches_by_number,
    check,
    dataset_of,
    iterate_custom_loader,
    length_of,
    variation_of,
)
from csrun.pytorch.session_check import session_check
from csrun.pytorch.settings import Settings, settings
from csrun.records.torch_names import same_stored_name, stored_name

log = logging.getLogger("csrun")
_modules: WeakKeyDictionary[torch.nn.Module, Settings] = WeakKeyDictionary()
loaders: list["SessionLoader"] = []  # of the script, in the order of creation, equal in all tasks
Loader = TypeVar("Loader", bound="SessionLoader")
active: list["OpenSession"] = []  # the Session whose block is active, if any


class OpenSession(Protocol):
    """The Session whose block is active, as used by loaders and helpers."""

    line: str

    def batches(self, loader: "SessionLoader") -> Generator[Any]:
        """Iterate over the batches of a pass."""

    def summarize(self, name: str, value: Any) -> None:
        """Write a value of the step to the events."""

    def scale_loss(self, scaler: Any) -> None:
        """Scale the loss whose `backward()` comes next."""


def module(model: torch.nn.Module) -> torch.nn.Module:
    """Register a model for Sessions and return it.

    Raises: UsageError for anything but a plain module, or two tensors with one name in checkpoints
    """
    found = settings("module")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"{user_line()}: cbtorch.module takes a torch.nn.Module, got {type(model).__name__}"
        )
    if scripted := [m for m in model.modules() if isinstance(m, torch.jit.ScriptModule)]:
        raise UsageError(
            f"{user_line()}: the model has a torch.jit.ScriptModule "
            f"({scripted[0].original_name}), which cannot be recorded: give the module without "
            "torch.jit"
        )
    if lazy := [n for n, p in model.named_parameters() if is_lazy(p)]:
        raise UsageError(
            f"{user_line()}: {lazy[0]} of the model has no shape yet (a Lazy module): run a batch "
            "through the model before cbtorch.module"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout is not torch.strided:
            raise UsageError(
                f"{user_line()}: {name} of the model is {tensor.layout}, only dense tensors are "
                "supported: call to_dense()"
            )
    names = (name for name, _ in (*model.named_parameters(), *model.named_buffers()))
    if same := same_stored_name(names):
        raise UsageError(
            f"{user_line()}: {same[0]} and {same[1]} of the model have the same name in "
            f"checkpoints, {stored_name(same[0])}: rename one of them"
        )
    _modules[model] = found
    session_check.expect(model)
    return model


def is_module(model: Any) -> bool:
    """True if an object was passed to `module`."""
    return isinstance(model, torch.nn.Module) and model in _modules


def require_module(model: Any, line: str) -> torch.nn.Module:
    """Return a Session's model, without the wrappers of `torch.compile` and `DataParallel`.

    Raises: UsageError for one that was not passed to `module`
    """
    found = model
    while not is_module(found):
        if isinstance(found, torch.nn.DataParallel):
            found = found.module
        elif hasattr(found, "_orig_mod"):
            found = found._orig_mod
        else:
            raise UsageError(
                f"{line}: Session: the model must be what cbtorch.module returned, "
                f"got {type(model).__name__}"
            )
    inner: torch.nn.Module = found
    return inner


def only_module(line: str) -> torch.nn.Module:
    """Return the model of a Session that names none: the one passed to `module`.

    Raises: UsageError if there is none, or more than one since `initialize`
    """
    now = settings("Session")
    found = [model for model, given in _modules.items() if given is now]
    if len(found) != 1:
        raise UsageError(
            f"{line}: Session(dataloader, mode) needs one model given to cbtorch.module, got "
            f"{len(found)}: name it, as in Session(model, optimizer, criterion, mode)"
        )
    return found[0]


def only_optimizer(model: torch.nn.Module, line: str) -> torch.optim.Optimizer:
    """Return the optimizer of a Session that names none: the one over the model's parameters.

    Raises: UsageError if there is none, or more than one
    """
    own = set(map(id, model.parameters()))
    gc.collect()  # unreachable optimizers do not count
    found = [
        each
        for each in gc.get_objects()
        if issubclass(type(each), torch.optim.Optimizer)
        and any(id(p) in own for group in each.param_groups for p in group["params"])
    ]
    if len(found) != 1:
        raise UsageError(
            f"{line}: Session(dataloader, mode) needs one optimizer over the model's parameters, "
            f"got {len(found)}: name it, as in Session(model, optimizer, criterion, mode)"
        )
    return found[0]


def dataloader(loader: DataLoader[Any]) -> "SessionLoader":
    """Wrap a DataLoader for Sessions; outside a Session's block it iterates as PyTorch's own."""
    return wrap(loader, SessionLoader)


def wrap(loader: Any, kind: type[Loader]) -> Loader:
    """Wrap a DataLoader for Sessions. kind: the wrapper's class."""
    settings("dataloader")
    if isinstance(loader, kind):
        return loader
    check(loader, user_line())
    session_check.expect()
    made = kind(loader)
    if not active:  # only the chief runs a block
        loaders.append(made)
    return made


@cache  # once per line
def _warn_of_reading_outside(line: str) -> None:
    log.warning(
        "%s: the dataloader is read outside a Session's block: this loop runs in PyTorch, in this "
        "process",
        line,
    )


class SessionLoader:
    """Wrapper of the user's DataLoader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.orders = PassOrders(loader)
        self.batches = batches_by_number(loader, self.orders)
        self.changes = DataChanges(loader)
        self._tensors = BatchTensors(user_line())
        self.dataset_of_batches = dataset_of(loader, self.orders, self._tensors, self.batches)
        self._is_varying: bool | None = None  # known from the first pass on

    def batch(self, number: int, taken: int | None = None) -> Any:
        """Make a batch by its number. taken: expected number of changes of the data set, if given.

        Raises: UsageError if the data set has changed since, and for a batch unlike the first one
        """
        if taken is not None and taken != self.changes.taken:
            raise UsageError(
                f"{user_line()}: a batch of an earlier pass is read after its data set changed: "
                "read it before the change, or clone it"
            )
        made = self.changes.fetch_batch(lambda: self.batches[number])
        if self._is_varying is False:
            self._tensors.taken(made)  # as streamers do
        else:
            self._tensors.note_first(made)
        return made

    @property
    def length(self) -> int:
        """Number of batches in a pass, at most."""
        return length_of(self.loader)

    def is_varying(self, first: int) -> bool:
        """True if streamers cannot make the batches, as the first ones of the first pass show.

        Logs that once. first: number of the pass's first batch.
        """
        if self._is_varying is None:
            what = variation_of(self.loader, lambda n: self.batch(first + n), self.length)
            self._is_varying = bool(what)
            if what:
                log.warning(
                    "%s: %s: this process makes the batches, no streamer does, and each shape is a "
                    "program: have collate_fn pad to one length, or to a few (buckets)",
                    user_line(),
                    what,
                )
        return self._is_varying

    def has(self, number: int) -> bool:
        """True if a pass whose length is unknown has a batch of this number."""
        try:
            self.batches[number]
        except PassEndedError:
            return False
        return True

    def encode(self) -> bytes:
        """Encode the passes' order, the data set's changes and the structure of a batch for
        `decode` in another process.
        """
        sent = self.orders.encode(), self.changes.patch, self._tensors.encode()
        return msgspec.msgpack.encode(sent)

    def decode(self, sent: bytes) -> None:
        """Apply the chief's message."""
        orders, patch, tensors = msgspec.msgpack.decode(sent, type=tuple[bytes, bytes, bytes])
        self.orders.decode(orders)
        self._tensors.decode(tensors)
        self.changes.apply(patch)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the user's loader, for packages that ask whether they get a DataLoader."""
        return type(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass, for the Session whose block contains the first one."""
        if active:
            yield from iterate_custom_loader(self.loader, active[-1].batches(self))
            return
        _warn_of_reading_outside(user_line())
        yield from self.loader

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy or pickle the user's loader instead of the wrapper."""
        return _returned, (self.loader,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def _returned(loader: Any) -> Any:
    return loader


class ScriptBatches(SessionLoader):
    """Batches of steps whose tensors the script creates itself, without a loader.

    Such a batch only has a number of samples. rows: of the current step's.
    """

    def __init__(self) -> None:
        super().__init__(DataLoader(_NoSamples(), batch_size=None))
        self.rows = 1

    def batch(self, number: int, taken: int | None = None) -> Any:
        """Return a tensor with a row for each sample, which is never read."""
        return torch.zeros(self.rows, dtype=torch.int64)


class _NoSamples(Dataset[Any]):
    """Data set without samples, for the case of no loader."""

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("such batches are pushed")
