"""The calls that step 1 made between its batch and `optimizer.step()`.

Forward's Python does not run in later steps. A call that step 1 made in the same place, on the same
values, returns what was recorded; all else that the loop computes is lazy.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map

from csrun.base.errors import UsageError
from csrun.pytorch.errors import call_for_user, user_line
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.ctc_loss import with_padded_targets
from csrun.pytorch.record.draws import Draw
from csrun.pytorch.record.followed_calls import FollowedCalls, Making
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import LeafSource, Recording, Ref, ancestors
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.record.unsupported import OfNumbersError
from csrun.pytorch.step.host_values import HostValues
from csrun.pytorch.step.snapshots import PLAIN, Snapshot
from csrun.pytorch.step.tokens import COMPUTED, Numbers, Owner, Slot, StepOutputs, Token, token_of

MODEL = "the model"
#: The names of one function: as an operator, as a method, and written in place.
_ALIASES = {"truediv": "div", "radd": "add", "rmul": "mul", "rtruediv": "rdiv", "iadd": "add"}
#: Functions that may give the values that they are given, which tokens do not know by themselves.
_GIVE_THEIR_OWN = frozenset({"broadcast_tensors", "real"})


def name_of(func: Any) -> str:
    """Return the name by which calls are compared."""
    plain = str(getattr(func, "__name__", func)).strip("_")
    if plain == "get":  # of a property
        plain = str(func.__self__.__name__)
    return _ALIASES.get(plain, plain)


def is_write(func: Any) -> bool:
    """True if a function, or an operator of ATen's, writes into its first argument."""
    name = getattr(func, "__name__", "").partition(".")[0]
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def writes_outside(func: Any, args: tuple[Any, ...]) -> bool:
    """True if a function writes into a tensor of the loop's own."""
    return is_write(func) and bool(args) and type(args[0]) is torch.Tensor


@dataclass(frozen=True, eq=False)
class Call:
    """A call of step 1 whose results are traced.

    operands: a Ref for each traced argument, a Snapshot for each tensor of the loop's own. how: the
    names of keywords; for the model also the modes of its modules and the state of its guards.
    spec: the structure of the model's arguments. gradients: `gradients_of` its arguments.
    differentiable: those of its results that have gradients. writes: it writes its first argument.
    draws: random numbers that forward draws.
    """

    name: str
    operands: tuple[Any, ...]
    results: Any
    how: tuple[Any, ...] = ()
    spec: TreeSpec | None = None
    gradients: tuple[bool, ...] | None = None
    differentiable: tuple[Any, ...] = ()
    writes: bool = False
    draws: tuple[Draw, ...] = ()

    @cached_property
    def made(self) -> tuple[str, tuple[Ref, ...]]:
        """Its name and the values that it gives."""
        return self.name, tuple(leaf for leaf in tree_leaves(self.results) if isinstance(leaf, Ref))


def gradients_of(leaves: list[Any]) -> tuple[bool, ...]:
    """Return whether autograd is on, and which of the values among the arguments it follows."""
    return torch.is_grad_enabled(), *(
        leaf.requires_grad for leaf in leaves if isinstance(leaf, TracedTensor | Token)
    )


def carried(value: Any) -> Any:
    """Return the numbers of an earlier step's value, if that is detached; others as they are."""
    if not isinstance(value, TracedTensor | Numbers) or value.requires_grad:
        return value
    with unrecorded():
        return (value.tensor() if isinstance(value, Numbers) else value.numbers()).clone()


class Calls(TorchFunctionMode):
    """Mode that records the loop's calls of PyTorch's functions, except inside of the model.

    later: returns the lazy result of a function of values of earlier steps. traced: puts traced
    tensors in the place of tokens, in a step that began on tokens.
    """

    def __init__(self, recorder: StepRecorder, later: Callable[..., Any]) -> None:
        super().__init__()
        self.later = later
        self.found: list[Call] = []
        self.depth = 0  # of calls of the model
        self.traced: Callable[[Any], Any] | None = None
        self.takes_arguments = recorder.takes_arguments
        self._recorder = recorder
        self._followed: FollowedCalls | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """One of PyTorch's functions is called."""
        kwargs = kwargs or {}
        if self._recorder.is_finished:
            return call_for_user(func, args, kwargs)
        if self._followed is not None:
            return self._followed.call(func, args, kwargs)
        return self._record(func, args, kwargs)

    def follow(self) -> FollowedCalls:
        """Follow the calls of earlier steps."""
        making = Making(self._record, self.found, lambda: self.depth > 0, self._within_model)
        self._followed = self._recorder.follow(making)
        return self._followed

    @contextmanager
    def _within_model(self, is_within: bool) -> Iterator[None]:
        before, self.depth = self.depth, int(is_within)
        try:
            yield
        finally:
            self.depth = before

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if self.depth:
            return call_for_user(func, args, kwargs)
        if self.traced is not None:
            args, kwargs = self.traced((args, kwargs))
        func, args, kwargs = with_padded_targets(func, args, kwargs)
        leaves = leaves_of(args, kwargs)
        if func is torch.Tensor.register_hook:
            raise UsageError(
                f"{user_line()}: a hook on a value of the loop would run in the first steps only: "
                "register it on the value in forward, or write a torch.autograd.Function"
            )
        if any(map(self._is_earlier, leaves)) and (
            self._may_lead_to_loss(leaves) or self._writes_own(func, args)
        ):
            args, kwargs = self.carried((args, kwargs))
            leaves = leaves_of(args, kwargs)
        if any(isinstance(a, TracedTensor) and self._is_earlier(a) for a in leaves):
            return self.later(func, args, kwargs)
        if writes_outside(func, args) and any(isinstance(a, TracedTensor) for a in leaves):
            return self._on_numbers(func, args, kwargs)
        if any(isinstance(a, TracedTensor) for a in leaves):
            args, kwargs = self.with_inputs((args, kwargs))
        operands, gradients = self.operands(args, kwargs), gradients_of(leaves)
        is_backward = func is torch.Tensor.backward  # which may run parts of forward again
        try:
            with self._recorder.host.off(not is_backward):
                results = call_for_user(func, args, kwargs)
        except OfNumbersError:
            if is_backward:
                raise
            if not self._may_lead_to_loss(leaves) and not self._is_of_batch(leaves):
                return self._on_numbers(func, args, kwargs)
            results = call_for_user(func, args, kwargs)
        if getattr(func, "__name__", "") != "__get__" or func.__self__.__name__ in COMPUTED:
            self.note(
                name_of(func), operands, results, tuple(kwargs), gradients, writes=is_write(func)
            )
        return results

    def carried(self, tree: Any) -> Any:
        """Return arguments with numbers in the place of detached values of earlier steps."""
        return tree_map(lambda x: carried(x) if self._is_earlier(x) else x, tree)

    def _is_earlier(self, value: Any) -> bool:
        """True if a value is of a step that is over."""
        if isinstance(value, TracedTensor):
            return value.recorder is not self._recorder
        return isinstance(value, Numbers)

    def with_inputs(self, tree: Any) -> Any:
        """Return arguments with traced tensors in the place of the script's, which come with the
        step; others where tensors of the script are constants.
        """
        return tree_map(self._recorder.plain.as_input, tree) if self.takes_arguments else tree

    def _writes_own(self, func: Any, args: tuple[Any, ...]) -> bool:
        """True if a function writes into a value of this step, such as a gradient."""
        return is_write(func) and any(
            isinstance(x, TracedTensor) and not self._is_earlier(x) for x in tree_leaves(args[:1])
        )

    def _may_lead_to_loss(self, leaves: list[Any]) -> bool:
        recorder = self._recorder
        is_before = torch.is_grad_enabled() and (recorder.has_updates or not recorder.has_loss)
        return is_before and any(isinstance(a, torch.Tensor) and a.requires_grad for a in leaves)

    def _is_of_batch(self, leaves: list[Any]) -> bool:
        """True if a call before the loss depends on the batch alone."""
        is_before = torch.is_grad_enabled() and not self._recorder.has_loss
        return is_before and self._recorder.host.are_of_batch(leaves)

    def _on_numbers(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Make a call on numbers: one that adds to a tensor of the loop's own, or whose result has
        a shape that depends on numbers.
        """
        read = self._recorder.read
        args, kwargs = tree_map(
            lambda a: read(a) if isinstance(a, TracedTensor) else a, (args, kwargs)
        )
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            return call_for_user(func, args, kwargs)

    def note(
        self,
        name: str,
        operands: tuple[Any, ...],
        results: Any,
        how: tuple[Any, ...],
        gradients: tuple[bool, ...],
        spec: TreeSpec | None = None,
        writes: bool = False,
        draws: tuple[Draw, ...] = (),
    ) -> None:
        """Record a call if any of its results is traced."""
        if traced := [r for r in tree_leaves(results) if isinstance(r, TracedTensor)]:
            followed = tuple(r.value for r in traced if r.requires_grad)
            refs = tree_map(self._ref, results)
            call = Call(name, operands, refs, how, spec, gradients, followed, writes, draws)
            self.found.append(call)

    def operands(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Return the flat arguments of a call, as they are before it."""
        return tuple(map(self._operand, leaves_of(args, kwargs)))

    def _operand(self, value: Any) -> Any:
        is_weight = isinstance(value, torch.nn.Parameter) and self._recorder.is_owned(value)
        if type(value) in PLAIN and not is_weight:
            if name := self._recorder.name_of(value):
                return Snapshot(value, name)
            with unrecorded():
                return Snapshot(value, numbers=self._recorder.plain.numbers_of(value))
        return self._ref(value)

    def _ref(self, value: Any) -> Any:
        return value.value if isinstance(value, TracedTensor) else value


@dataclass(frozen=True, eq=False)
class Expected:
    """A call that each step makes. operands: a Slot for each value of the step.

    gradients: `gradients_of` its arguments; None in an evaluation. draws: as of `Call`.
    """

    name: str
    operands: tuple[Any, ...]
    results: Any
    how: tuple[Any, ...]
    is_one: bool = False
    spec: TreeSpec | None = None
    gradients: tuple[bool, ...] | None = None
    draws: tuple[Draw, ...] = ()

    def is_called(self, name: str, given: list[Any], how: tuple[Any, ...]) -> bool:
        """True if a call is this one."""
        if name != self.name or len(given) != len(self.operands) or how != self.how:
            return False
        for operand, argument in zip(self.operands, given, strict=True):
            if operand is argument:
                continue
            if isinstance(argument, Token):
                if argument.slot is not operand:
                    return False
            elif not _is_equal(operand, argument):
                return False
        return self.gradients is None or self.gradients == gradients_of(given)

    def first_difference(self, given: list[Any]) -> int:
        """Return the index of the first argument that differs, in a call that is not this one."""
        for index, (operand, argument) in enumerate(zip(self.operands, given, strict=True)):
            value = argument.slot if isinstance(argument, Token) else argument
            if operand is not value and not _is_equal(operand, value):
                return index
        raise AssertionError("the call differs in an argument")

    def tokens(self, owner: Owner, step: StepOutputs) -> Any:
        """Return its results in a step."""
        if self.is_one:
            return token_of(owner, step, self.results)
        return tree_map(
            lambda r: token_of(owner, step, r) if isinstance(r, Slot) else r, self.results
        )


def _is_equal(operand: Any, argument: Any) -> bool:
    if type(operand) is Slot and operand.is_argument:
        return operand.fits(argument)
    if type(operand) is Snapshot:
        return operand.is_still(argument)
    if isinstance(operand, torch.Tensor | Slot) or isinstance(argument, torch.Tensor):
        return False
    return type(operand) is type(argument) and bool(operand == argument)


class LoopShape:
    """The expected calls of a step, and the values that it has for the loop.

    The calls are those that lead to the loss, or to an argument of the model, which it may leave
    unused; in an evaluation, to the first value that is read, or to a write into a value.
    batch: as the loader made it, with a Slot for each tensor. inputs: those Slots, shared by all
    variants with such batches of a loader. loss: None in an evaluation. host: what the host
    computes in each step.
    """

    def __init__(
        self,
        recording: Recording,
        batch: Any,
        calls: Iterable[Call],
        inputs: Mapping[Ref, Slot] | None = None,
    ) -> None:
        self._recording = recording
        self._slots: dict[Ref, Slot] = dict(inputs or {})
        calls = list(calls)
        wanted = ancestors(recording, self._goals(calls))
        self._is_batch_known = False
        self._arguments = {
            leaf.value: Slot(leaf.value, leaf.tensor.to("meta"), is_argument=True)
            for leaf in recording.of(LeafSource.SCRIPT)
        }
        self._differentiable: set[Ref] = set()
        self.batch = self._with_slots(batch)
        self.inputs: Mapping[Ref, Slot] = dict(self._slots)
        self._is_batch_known = True
        self.calls: list[Expected] = []
        if recording.loss:
            self._differentiable = {value for call in calls for value in call.differentiable}
        for call in calls:
            results = [r for r in tree_leaves(call.results) if isinstance(r, Ref)]
            is_needed = call.name == MODEL or any(r in wanted for r in results)
            if is_needed and (call.name in _GIVE_THEIR_OWN or not self._is_known(results)):
                self.calls.append(self._expected(call))
        self.loss = self._slots.get(recording.loss) if recording.loss else None
        self.host = HostValues(recording)
        flat, self._spec = tree_flatten(self.batch)
        self._flat, self._is_list = flat, type(self.batch) is list and len(flat) == len(self.batch)

    def _goals(self, calls: Sequence[Call]) -> list[Ref]:
        """Return the values that each step computes by the same calls."""
        recording = self._recording
        found = [x for call in calls if call.name == MODEL for x in call.operands]
        if recording.loss is not None:
            found.append(recording.loss)
        else:
            found += [read.value for read in recording.reads[:1]]
            found += [x for call in calls if call.writes for x in tree_leaves(call.results)]
        return [x for x in found if isinstance(x, Ref)]

    @cached_property
    def modes(self) -> tuple[bool, ...] | None:
        """Modes of the modules at the model's first call."""
        return next((call.how[1] for call in self.calls if call.name == MODEL), None)

    @cached_property
    def takes_weights(self) -> bool:
        """True if the loop itself computes with weights on the way to its loss."""
        return any(
            isinstance(operand, torch.nn.Parameter) or (type(operand) is Snapshot and operand.name)
            for call in self.calls
            for operand in call.operands
        )

    @property
    def values(self) -> Iterable[Ref]:
        """All values that a step has for the loop."""
        return self._slots

    def slot_of(self, value: Ref) -> Slot | None:
        """Return the slot of a value, None for one that steps do not have for the loop."""
        return self._slots.get(value)

    @property
    def arrays(self) -> list[Slot]:
        """Slots of the batch's tensors, in order."""
        return [leaf for leaf in self._flat if isinstance(leaf, Slot)]

    def _is_known(self, results: list[Ref]) -> bool:
        return all(r in self._slots for r in results)

    def _expected(self, call: Call) -> Expected:
        operands = tuple(self._operand(o) if isinstance(o, Ref) else o for o in call.operands)
        results = self._with_slots(call.results)
        is_one = isinstance(results, Slot)
        gradients = call.gradients if self._recording.loss else None
        return Expected(
            call.name, operands, results, call.how, is_one, call.spec, gradients, call.draws
        )

    def _operand(self, value: Ref) -> Any:
        return self._slots.get(value) or self._arguments.get(value, value)

    def compares(self, tensor: torch.Tensor | None) -> bool:
        """True if a call compares a tensor's numbers in each step."""
        operands = (operand for call in self.calls for operand in call.operands)
        return any(type(o) is Snapshot and o.watches(tensor) for o in operands)

    @property
    def known(self) -> set[Ref]:
        """Tensors that a step knows without forward: given to a call, drawn, or of the batch."""
        operands = (operand for call in self.calls for operand in call.operands)
        given = {o.value for o in operands if type(o) is Slot and o.is_argument}
        known = given.union(d.value for call in self.calls for d in call.draws if d.value)
        return known.union(self.host.needed) if self.host.given <= known else known

    def _with_slots(self, tree: Any) -> Any:
        return tree_map(lambda x: self._slot(x) if isinstance(x, Ref) else x, tree)

    def _slot(self, value: Ref) -> Slot:
        if value not in self._slots:
            kind = self._recording.kind(value)
            meta = torch.empty(kind.shape, dtype=kind.dtype, device="meta")
            if value in self._differentiable and kind.dtype.is_floating_point:
                meta.requires_grad_()
            is_input, is_loss = not self._is_batch_known, value == self._recording.loss
            weight = self._recording.viewed_parameter(value)
            self._slots[value] = Slot(value, meta, is_loss, is_input, weight)
        return self._slots[value]

    def bases_of(self, recording: Recording, values: Iterable[Ref]) -> tuple[Ref, ...]:
        """Return the values of a step from which the loop computes these, except the loss."""
        wanted = [value for value in values if value != recording.loss]
        made_of = ancestors(recording, wanted, self._slots)
        return tuple(ref for ref in self._slots if ref in made_of and ref != recording.loss)

    def tokens_of_batch(self, owner: Owner, step: StepOutputs) -> Any:
        """Return the batch of a step, as tokens."""
        made = [token_of(owner, step, x) if isinstance(x, Slot) else x for x in self._flat]
        return made if self._is_list else self._spec.unflatten(made)
