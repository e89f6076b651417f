"""What was computed on tensors without memory, and how to compute any one of them again."""

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
#: Operators after which nothing is left of what was there.
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
class Place:
    """A tensor as a view of a storage, which is known by its address."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, x: torch.Tensor) -> "Place":
        """Where a tensor lies."""
        return cls(address(x), tuple(x.size()), tuple(x.stride()), x.storage_offset(), x.dtype)

    def within(self, storages: Storages) -> torch.Tensor:
        """The tensor, over real storages."""
        made = torch.empty(0, dtype=self.dtype)
        return made.set_(storages[self.storage], self.offset, self.size, self.stride)


@dataclass(frozen=True)
class Given:
    """A tensor that has its values, and how often it had been written to."""

    tensor: torch.Tensor
    version: int


@dataclass(frozen=True)
class Made:
    """An operator that ran: Places and Givens stand for its tensors.

    writes: the storages that it makes or writes to; covers: of these, those of which it leaves
    nothing that was there. generator: the state before it, of an operator that draws.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: tuple[Place | None, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    covers: frozenset[int]
    generator: torch.Tensor | None
    line: str


class Tape:
    """Operators in the order in which they ran, in one block."""

    def __init__(self) -> None:
        self._made: list[Made] = []
        self._writers: dict[int, list[int]] = {}  # by storage, the numbers of operators
        self._last: dict[int, torch.Tensor] = {}  # the tensor that was made or written last
        self._versions: dict[int, int] | None = None

    def add(self, made: Made, tensors: Iterable[torch.Tensor]) -> None:
        """An operator ran, and gave these."""
        for tensor in tensors:
            self._last[address(tensor)] = tensor
            _tapes[address(tensor)] = self
        for storage in made.writes:
            self._writers.setdefault(storage, []).append(len(self._made))
        self._made.append(made)

    def end(self) -> None:
        """Nothing is written to any of them from here on."""
        self._versions = {storage: x._version for storage, x in self._last.items()}

    def forget(self, storage: int) -> None:
        """The user's tensor is another one from here on."""
        self._last.pop(storage, None)

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """The numbers that PyTorch would have given it; beside it no other one stays in memory.

        Raises: UsageError for one that was written to after the block, or made of what was
        """
        place, storages = Place.of(tensor), Storages()
        numbers = self._needed(place.storage)
        last = {storage: n for n in numbers for storage in _storages_of(self._made[n])}
        with torch.no_grad(), _disable_current_modes(), torch.random.fork_rng(devices=[]):
            for number in numbers:
                made = self._made[number]
                _run(made, storages)
                for storage in _storages_of(made):
                    if last[storage] == number and storage != place.storage:
                        storages.pop(storage, None)
            return place.within(storages)

    def _needed(self, storage: int) -> list[int]:
        """The operators that made what a storage has, in order."""
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


_tapes: dict[int, Tape] = {}  # by a storage of theirs, which they keep


def address(x: torch.Tensor) -> int:
    """What tells a tensor's storage from others; 0 where there are no bytes."""
    if x._is_zerotensor():  # autograd's zeros, which PyTorch makes no memory for
        return 0
    storage = x.untyped_storage()
    found: int = storage._cdata if is_meta(x) else storage.data_ptr()
    return found


def is_meta(x: torch.Tensor) -> bool:
    """Whether a tensor has no memory, whatever it says of itself in a block of `meta_init`."""
    kind: str = x.device.type
    return kind == "meta"


def is_on_meta(model: torch.nn.Module) -> bool:
    """Whether some of a model's parameters or buffers have no memory."""
    return any(is_meta(x) for xs in (model.parameters(), model.buffers()) for x in xs)


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor of the meta device.

    Raises: UsageError for one that `meta_init` has not made
    """
    tape = _tapes.get(address(tensor))
    if tape is None:
        raise UsageError(
            f"{user_line()}: a tensor of shape {list(tensor.shape)} on the meta device was not "
            "made under cbtorch.meta_init() and has no values: build and convert the model inside "
            "its block, and leave out .to(device)"
        )
    return tape.value(tensor)


def forget(tensor: torch.Tensor) -> None:
    """A tensor of a model gets memory: nobody will ask for its first value."""
    tape = _tapes.pop(address(tensor), None)
    if tape is not None:
        tape.forget(address(tensor))


def is_made(tensor: torch.Tensor) -> bool:
    """Whether `meta_init` has made it, and can do so again."""
    return is_meta(tensor) and address(tensor) in _tapes


def real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that `meta_init` has made with its numbers; any other one as it is."""
    return value_of(tensor) if is_made(tensor) else tensor


def made_by(
    func: Any, args: Any, kwargs: Any, results: Any, generator: torch.Tensor | None, line: str
) -> Made:
    """An operator that ran on the meta device."""
    before, after = _tensors((args, kwargs)), _tensors(results)
    known = {address(x) for x in before if is_meta(x)}
    made = {address(x) for x in after}
    covers: Collection[int] = made - known
    if func in _OVERWRITES and _is_whole(args[0]):
        covers = made
        known -= made - {address(x) for x in before[1:] if is_meta(x)}
    arguments, keywords = tree_map(_kept, (args, dict(kwargs)))
    if "device" in keywords:
        keywords["device"] = torch.device("cpu")
    each = results if isinstance(results, tuple | list) else [results]
    places = tuple(Place.of(x) if isinstance(x, torch.Tensor) else None for x in each)
    reads = frozenset(known)
    writes, covers = frozenset(made), frozenset(covers)
    return Made(func, arguments, keywords, places, reads, writes, covers, generator, line)


def _is_whole(x: torch.Tensor) -> bool:
    return bool(x.numel() * x.element_size() == x.untyped_storage().nbytes())


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _kept(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return Place.of(argument) if is_meta(argument) else Given(argument, argument._version)


def _storages_of(made: Made) -> frozenset[int]:
    return made.reads | made.writes


def _run(made: Made, storages: Storages) -> None:
    first = made.arguments[0] if made.arguments else None
    if isinstance(first, Place) and first.storage in made.covers - set(storages):
        storages[first.storage] = torch.UntypedStorage(prod(first.size) * first.dtype.itemsize)

    def tensor(argument: Any) -> Any:
        if isinstance(argument, Given):
            if argument.tensor._version != argument.version:
                raise UsageError(
                    f"{made.line}: {made.call} read a tensor that was written later, so it cannot "
                    "be replayed: give it a clone"
                )
            return argument.tensor
        return argument.within(storages) if isinstance(argument, Place) else argument

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
