"""Tape of the operators that ran on meta tensors, and its replay for one of these tensors."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line

aten = torch.ops.aten
#: Operators that overwrite all of their first operand.
_OVERWRITES = {
    aten.normal_.default,
    aten.uniform_.default,
    aten.zero_.default,
    aten.fill_.Scalar,
    aten.fill_.Tensor,
    aten.copy_.default,
}
Storages = dict[int, torch.UntypedStorage]


@dataclass(frozen=True)
class StorageView:
    """A meta tensor as a view of a storage, which is identified by its address."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, x: torch.Tensor) -> "StorageView":
        """Return the view that a tensor is."""
        return cls(address(x), tuple(x.size()), tuple(x.stride()), x.storage_offset(), x.dtype)

    def within(self, storages: Storages) -> torch.Tensor:
        """Return the tensor over storages that have memory."""
        made = torch.empty(0, dtype=self.dtype)
        return made.set_(storages[self.storage], self.offset, self.size, self.stride)


@dataclass(frozen=True)
class ReadTensor:
    """A tensor with memory that an operator read, and its version then."""

    tensor: torch.Tensor
    version: int


@dataclass(frozen=True)
class TapeEntry:
    """An operator that ran; StorageViews and ReadTensors stand for its tensors.

    reads, writes: storages; a created one counts as written.
    covers: written storages that it overwrites completely.
    generator: generator state before an operator that draws.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: tuple[StorageView | None, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    covers: frozenset[int]
    generator: torch.Tensor | None
    line: str


class Tape:
    """Operators of one block, in the order in which they ran."""

    def __init__(self) -> None:
        self._made: list[TapeEntry] = []
        self._writers: dict[int, list[int]] = {}  # numbers of operators, by storage
        self._last: dict[int, torch.Tensor] = {}  # the tensor that was created or written last
        self._versions: dict[int, int] | None = None

    def add(self, made: TapeEntry, tensors: Iterable[torch.Tensor]) -> None:
        """Append an operator that ran. tensors: its results."""
        for tensor in tensors:
            self._last[address(tensor)] = tensor
            _tapes[address(tensor)] = self
        for storage in made.writes:
            self._writers.setdefault(storage, []).append(len(self._made))
        self._made.append(made)

    def end(self) -> None:
        """Close the tape: writes from here on are errors."""
        self._versions = {storage: x._version for storage, x in self._last.items()}

    def forget(self, storage: int) -> None:
        """Stop watching a storage whose tensor has been allocated."""
        self._last.pop(storage, None)

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's values by replay; intermediate storages are freed after their last use.

        Raises: UsageError for a tensor that was written after the block, or depends on one
        """
        place, storages = StorageView.of(tensor), Storages()
        numbers = self._dependencies_of(place.storage)
        last = {storage: n for n in numbers for storage in _storages_of(self._made[n])}
        with torch.no_grad(), _disable_current_modes(), torch.random.fork_rng(devices=[]):
            for number in numbers:
                made = self._made[number]
                _replay(made, storages)
                for storage in _storages_of(made):
                    if last[storage] == number and storage != place.storage:
                        storages.pop(storage, None)
            return place.within(storages)

    def _dependencies_of(self, storage: int) -> list[int]:
        """Return the numbers of the operators that a storage's values depend on, in order."""
        found, open_ = set[int](), [(storage, len(self._made))]
        while open_:
            wanted, before = open_.pop()
            self._require_unchanged(wanted)
            for number in reversed(self._writers[wanted]):
                if number >= before:
                    continue
                made = self._made[number]
                if number not in found:
                    found.add(number)
                    open_ += [(read, number) for read in made.reads]
                if wanted in made.covers:
                    break
        return sorted(found)

    def _require_unchanged(self, storage: int) -> None:
        tensor, then = self._last.get(storage), self._versions
        if tensor is not None and then is not None and tensor._version != then[storage]:
            raise UsageError(
                f"{user_line()}: a tensor of shape {list(tensor.shape)} made under "
                f"cbtorch.meta_init() ({self._made[self._writers[storage][-1]].line}) was written "
                "after the block, where it has no memory: write it inside the block"
            )


_tapes: dict[int, Tape] = {}  # by the address of a storage, which the tape keeps alive


def address(x: torch.Tensor) -> int:
    """Return the address that identifies a tensor's storage; 0 where there are no bytes."""
    if x._is_zerotensor():  # autograd's zero tensors, for which PyTorch allocates no memory
        return 0
    if x.layout is not torch.strided:
        return 0
    storage = x.untyped_storage()
    found: int = storage._cdata if is_meta(x) else storage.data_ptr()
    return found


def is_meta(x: torch.Tensor) -> bool:
    """True if a tensor has no memory; its `is_meta` is patched within `meta_init`."""
    kind: str = x.device.type
    return kind == "meta"


def is_on_meta(model: torch.nn.Module) -> bool:
    """True if some of a model's parameters or buffers have no memory."""
    return any(is_meta(x) for xs in (model.parameters(), model.buffers()) for x in xs)


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a meta tensor.

    Raises: UsageError for one that was not made under `meta_init`
    """
    tape = _tapes.get(address(tensor))
    if tape is None:
        raise UsageError(
            f"{user_line()}: a tensor of shape {list(tensor.shape)} on the meta device was not "
            "made under cbtorch.meta_init() and has no values: build and convert the model inside "
            "its block, and leave out .to(device)"
        )
    return tape.value(tensor)


def drop_record(tensor: torch.Tensor) -> None:
    """Drop the record of a tensor that has got memory."""
    tape = _tapes.pop(address(tensor), None)
    if tape is not None:
        tape.forget(address(tensor))


def is_deferred(tensor: torch.Tensor) -> bool:
    """True if a tensor was made under `meta_init`."""
    return is_meta(tensor) and address(tensor) in _tapes


def materialize(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor made under `meta_init` with memory; any other one as it is."""
    return value_of(tensor) if is_deferred(tensor) else tensor


def entry_of(
    func: Any, args: Any, kwargs: Any, results: Any, generator: torch.Tensor | None, line: str
) -> TapeEntry:
    """Return the tape entry of an operator that ran on the meta device."""
    before, after = _tensors((args, kwargs)), _tensors(results)
    known = {address(x) for x in before if is_meta(x)}
    made = {address(x) for x in after}
    covers: Collection[int] = made - known
    if func in _OVERWRITES and _is_whole_storage(args[0]):
        covers = made
        known -= made - {address(x) for x in before[1:] if is_meta(x)}
    arguments, keywords = tree_map(_as_recorded, (args, dict(kwargs)))
    if "device" in keywords:
        keywords["device"] = torch.device("cpu")
    each = results if isinstance(results, tuple | list) else [results]
    places = tuple(StorageView.of(x) if isinstance(x, torch.Tensor) else None for x in each)
    reads = frozenset(known)
    writes, covers = frozenset(made), frozenset(covers)
    return TapeEntry(func, arguments, keywords, places, reads, writes, covers, generator, line)


def _is_whole_storage(x: torch.Tensor) -> bool:
    return bool(x.numel() * x.element_size() == x.untyped_storage().nbytes())


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _as_recorded(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return (
        StorageView.of(argument) if is_meta(argument) else ReadTensor(argument, argument._version)
    )


def _storages_of(made: TapeEntry) -> frozenset[int]:
    return made.reads | made.writes


def _replay(made: TapeEntry, storages: Storages) -> None:
    first = made.arguments[0] if made.arguments else None
    if isinstance(first, StorageView) and first.storage in made.covers - set(storages):
        storages[first.storage] = torch.UntypedStorage(prod(first.size) * first.dtype.itemsize)

    def tensor(argument: Any) -> Any:
        if isinstance(argument, ReadTensor):
            if argument.tensor._version != argument.version:
                raise UsageError(
                    f"{made.line}: {made.call} read a tensor that was written later, so it cannot "
                    "be replayed: give it a clone"
                )
            return argument.tensor
        return argument.within(storages) if isinstance(argument, StorageView) else argument

    arguments, keywords = tree_map(tensor, (made.arguments, dict(made.keywords)))
    if made.generator is not None:
        own = keywords.get("generator")
        if own is not None:
            keywords["generator"] = own = torch.Generator()
        (own or torch.default_generator).set_state(made.generator)
    found = made.call(*arguments, **keywords)
    each = found if isinstance(found, tuple | list) else [found]
    for place, x in zip(made.results, each, strict=True):
        if place is not None and place.storage not in storages:
            storages[place.storage] = x.untyped_storage()
