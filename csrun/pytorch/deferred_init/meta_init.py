"""Context manager in which a model is built on the meta device."""

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from csrun.base.errors import UsageError
from csrun.pytorch.deferred_init.tape import Tape, entry_of, is_meta, value_of
from csrun.pytorch.errors import is_of_csrun, is_of_torch, user_line

META = torch.device("meta")
_IS_META = torch.Tensor.is_meta.__get__
_NO_MEMORY = "meta", "unallocated storage"  # in PyTorch's messages
_DRAWS = torch.Tag.nondeterministic_seeded


def meta_init() -> "MetaInit":
    """Return a context manager in which a model is built on the meta device, without memory.

        with cbtorch.meta_init():
            model = Model()

    Random initializers draw and discard, a tensor at a time, so that PyTorch's generator advances
    as usual. A Session replays them from the recorded generator states, one by one, into the run's
    store: the values are those of a model built without the block, bit for bit. Tensors of integers
    are created with memory.

    Raises: UsageError, with the line, for an initialization that cannot be replayed
    """
    return MetaInit()


class _HiddenMeta(TorchFunctionMode):
    """Make `is_meta` false: initializers such as trunc_normal_ skip meta tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False if func == _IS_META else func(*args, **(kwargs or {}))


class MetaInit(TorchDispatchMode):
    """Creates floating-point tensors on the meta device and records their operators."""

    def __init__(self) -> None:
        super().__init__()
        self._tape = Tape()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(_HiddenMeta())
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._open.close()
        self._tape.end()
        if isinstance(error, NotImplementedError | RuntimeError | TypeError | ValueError) and any(
            word in str(error) for word in _NO_MEMORY
        ):
            raise UsageError(
                f"{_line_of(traceback)}: this initialization cannot be replayed, as it reads the "
                f"values of a tensor on the meta device: {str(error).splitlines()[0]}; build the "
                "model without cbtorch.meta_init()"
            ) from error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on the meta device if it creates floats or takes a meta tensor."""
        kwargs = dict(kwargs or {})
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if not any(is_meta(x) for x in given):
            if given or not _makes_floats(func, args, kwargs):
                return func(*args, **kwargs)
        elif func is torch.ops.aten._local_scalar_dense.default:
            # trunc_normal_ uses it to decide whether to draw again
            return value_of(given[0]).item()
        return self._without_memory(func, args, kwargs, given)

    def _without_memory(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
        written = _written_tensors(func, args)
        if any(not is_meta(x) for x in written):
            raise UsageError(
                f"{user_line()}: {func} writes a tensor without memory into one with memory: "
                "create both inside the block of cbtorch.meta_init()"
            )
        state = None
        if _DRAWS in func.tags:
            others = [x for x in given if not any(x is w for w in written)]
            if others:
                raise UsageError(
                    f"{user_line()}: {func} draws by the values of a tensor, which cannot be "
                    "replayed: build the model without cbtorch.meta_init()"
                )
            state = _draw_discarded(func, args, kwargs)
        results = func(*tree_map(_as_meta, args), **tree_map(_as_meta, _on_meta(kwargs)))
        each = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        if written or not _is_view(func):
            if not given:
                kwargs["dtype"] = each[0].dtype  # the default may differ at replay
            self._tape.add(entry_of(func, args, kwargs, results, state, user_line()), each)
        return results


def _makes_floats(func: Any, args: Any, kwargs: Any) -> bool:
    """True if a factory operator creates a floating-point tensor."""
    if not any(a.name == "device" for a in func._schema.arguments):
        return False
    found = func(*args, **_on_meta({**kwargs, "device": META}))
    return isinstance(found, torch.Tensor) and found.is_floating_point()


def _on_meta(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords for a call on the meta device, which draws nothing."""
    kept = {k: v for k, v in kwargs.items() if k != "pin_memory"}
    if "device" in kept:
        kept["device"] = META
    if "generator" in kept:
        kept["generator"] = None
    return kept


def _as_meta(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor) and not is_meta(argument):
        size, stride = argument.size(), argument.stride()
        return torch.empty_strided(size, stride, dtype=argument.dtype, device=META)
    return argument


def _written_tensors(func: Any, args: Any) -> list[torch.Tensor]:
    marked = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    pairs = zip(marked, args, strict=False)
    return [x for is_written, x in pairs if is_written and isinstance(x, torch.Tensor)]


def _is_view(func: Any) -> bool:
    return all(r.alias_info is not None for r in func._schema.returns)


def _draw_discarded(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """Draw what the operator would draw; return the generator's state before."""
    generator = kwargs.get("generator") or torch.default_generator
    state: torch.Tensor = generator.get_state()
    if args and isinstance(args[0], torch.Tensor):
        like = args[0]
        real = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
        func(real, *args[1:], **kwargs)
    else:
        func(*args, **{**kwargs, "device": torch.device("cpu")})
    return state


def _line_of(traceback: TracebackType | None) -> str:
    """Return `file:line` of the innermost frame of a traceback in the user's code."""
    found = ""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not (is_of_torch(name) or is_of_csrun(name)):
            found = f"{name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
