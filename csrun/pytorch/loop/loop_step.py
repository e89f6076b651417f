"""Current step of a loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.revalidation import Revalidation
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.equal_bits import have_equal_bits
from csrun.pytorch.record.recording import LeafSource, Ref
from csrun.pytorch.step.expected_calls import Expected
from csrun.pytorch.step.host_values import HostResults
from csrun.pytorch.step.loop_calls import MODEL
from csrun.pytorch.step.loop_writes import is_write
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Slot, StepOutputs
from csrun.pytorch.step.step_status import StepStatus
from csrun.pytorch.step.tokens import LazyTensor, Token
from csrun.pytorch.step.variant import Batches, StepVariant


class TokenCall(NamedTuple):
    """A call of a step on tokens that matches one of step 1. has_gradients: autograd records it.

    random_state: state of PyTorch's generator before it, if forward draws.
    """

    expected: Expected
    func: Any
    args: Any
    kwargs: Any
    has_gradients: bool
    random_state: torch.Tensor | None = None

    @property
    def is_of_model(self) -> bool:
        return self.expected.name == MODEL

    @property
    def is_as_made(self) -> bool:
        """True if the loop has not written its own tensors among the arguments."""
        given = zip(self.expected.operands, leaves_of(self.args, self.kwargs), strict=True)
        return all(x.is_still(argument) for x, argument in given if isinstance(x, Snapshot))


@dataclass(eq=False)
class LoopStep:
    """Current step of the loop, from its batch to `optimizer.step()` or the next batch.

    One is created per step, so fields that few steps set are class attributes.

    batch: index of its batch among the loader's.
    variant: None until it is known, in a step that is recorded for the first time.
    guards: number of the guards' state at the batch.
    rows: number of samples of the batch; None if samples are batches themselves.
    calls: expected calls that were made.
    given: tensors of the script among their arguments.
    place: number of batches before it in the same `optimizer.step()`, known from `backward()` or
        the first read on.
    numbers: the optimizer's numbers with which it was ordered.
    numbers_at_read: those of its groups when a value was first read, in a recorded step.
    is_updated: its update was queued before `optimizer.step()`.
    is_computed: the host's results are given.
    has_other_shapes: its shapes differ from those of step 1.
    strayed: a call of the expected function with other arguments, for messages.
    changed: reason why the program cannot compute the step's values, for messages.
    revalidation: set if the step is compared with step 1 again.
    """

    outputs: StepOutputs
    batches: Batches
    batch: int
    variant: StepVariant | None = None
    guards: int = 0
    rows: int | None = None
    calls: list[TokenCall] = field(default_factory=list, init=False)
    given: dict[Ref, torch.Tensor] = field(default_factory=dict, init=False)
    recorded: RecordedStep | None = field(default=None, init=False)
    place: int = field(default=0, init=False)
    numbers: tuple[float, ...] = field(default=(), init=False)
    numbers_at_read: list[tuple[float, ...]] | None = field(default=None, init=False)
    is_updated: bool = field(default=False, init=False)
    is_computed: bool = field(default=False, init=False)
    has_other_shapes: bool = field(default=False, init=False)
    mismatch: str = field(default="", init=False)
    changed: str = field(default="", init=False)
    revalidation: Revalidation | None = field(default=None, init=False)
    status: StepStatus = field(init=False)

    def __post_init__(self) -> None:
        self.status = self.outputs.status

    @property
    def has_called_model(self) -> bool:
        """True in a step on tokens after its calls of the model."""
        return any(call.is_of_model for call in self.calls)

    @property
    def updated(self) -> frozenset[str]:
        """Names of the parameters that it updates."""
        assert self.variant is not None, "the step has a variant"
        return self.variant.updates

    @property
    def counters(self) -> Mapping[str, int]:
        """Increments of integer buffers, by name."""
        assert self.variant is not None, "the step has a variant"
        computed = self.variant if self.recorded is None else self.recorded
        return computed.recording.counters

    @property
    def inputs(self) -> tuple[torch.Tensor, ...] | None:
        """Tensors that its program takes; None if a loader gives them."""
        assert self.variant is not None, "the step has a variant"
        if not self.variant.batches.is_pushed:
            return None
        if self.recorded is not None:
            return self.recorded.graph.inputs_of(self.variant)
        assert self.outputs.batch is not None, "it began with one"
        batch = (x for x in tree_leaves(self.outputs.batch()) if isinstance(x, torch.Tensor))
        return tuple(
            next(batch)
            if leaf.source is LeafSource.INPUT
            else self.given.get(leaf.value, leaf.tensor)
            for leaf in self.variant.recording.program_inputs
        )

    @property
    def lacks_tensors(self) -> bool:
        """True if its program needs tensors that no call got and forward did not draw."""
        if self.variant is None or self.recorded is not None:
            return False
        leaves = self.variant.recording.script_leaves
        return any(leaf.value not in self.given for leaf in leaves)

    def note(
        self, expected: Expected, func: Any, args: Any, kwargs: Any, leaves: list[Any]
    ) -> bool:
        """Record a call that was made; False if it gets another tensor of the script than an
        earlier call of the step, where step 1 passed the same one.

        leaves: its arguments, flat.
        """
        assert self.variant is not None, "the step has a variant"
        state = None
        if expected.takes_script_tensors:
            own = self._given_to(expected, leaves)
            if own is None:
                return False
            args, kwargs = tree_map(lambda x: own.get(id(x), x), (args, kwargs))
        if self.variant.shape.host.has_results and not self.compute_on_host():
            return False
        if expected.draws:
            state = self._draw(expected)
        self.calls.append(TokenCall(expected, func, args, kwargs, torch.is_grad_enabled(), state))
        if is_write(func) and isinstance(args[0], Token):
            self._keep_slot(args[0])
        return True

    def compute_on_host(self) -> bool:
        """Compute the host's results of its variant's step, once all inputs are known.

        False if a result has another shape than in step 1.
        """
        assert self.variant is not None, "the step has a variant"
        host = self.variant.shape.host
        if not host.has_results or self.is_computed or not host.given <= self.given.keys():
            return True
        assert self.outputs.batch is not None, "it began with one"
        found = host.compute(self.outputs.batch(), {ref: self.given[ref] for ref in host.given})
        self.take_results(found)
        return found is not None

    def find_change(self, writes: int) -> str:
        """Return `changed`, set if a tensor has changed whose numbers are in the step's program.

        writes: of the model's tensors so far.
        """
        assert self.variant is not None, "it has a program"
        if self.changed or not self.variant.constants:
            return self.changed
        if line := self.variant.changed_constant(writes):
            self.changed = f"{line}: a tensor that this line uses has changed"
        return self.changed

    def take_variant(self, variant: StepVariant) -> None:
        """Set another variant, before the first call."""
        self.variant, self.given, self.is_computed = variant, {}, False
        self.has_other_shapes = False

    def take_results(self, computed: HostResults | None) -> None:
        """Take the host's results; None if one has another shape than in step 1."""
        self.is_computed = computed is not None
        self.has_other_shapes = computed is None or not computed.is_exact
        self.given.update({} if computed is None else computed.values)
        self.outputs.rows = None if computed is None else computed.rows

    def _draw(self, expected: Expected) -> torch.Tensor:
        """Draw forward's random numbers; return the generator state before."""
        state = torch.get_rng_state()
        for draw in expected.draws:
            numbers = draw.again()
            if draw.value is not None:
                self.given[draw.value] = numbers
        return state

    def _given_to(self, expected: Expected, leaves: list[Any]) -> dict[int, torch.Tensor] | None:
        """Return copies of the script's tensors among arguments, by id; None if one is another
        tensor.
        """
        own: dict[int, torch.Tensor] = {}
        for operand, given in zip(expected.operands, leaves, strict=True):
            if type(operand) is Slot and operand.is_argument:
                if operand.value not in self.given:
                    self.given[operand.value] = given.detach().clone()
                elif not have_equal_bits(self.given[operand.value], given):
                    return None
                own[id(given)] = self.given[operand.value]
        return own

    def may_lead_to_loss(self, args: Any, kwargs: Any) -> bool:
        """True for arguments whose result of unknown shape may be needed for the loss."""
        if self.variant is None or self.status.has_gradients or not torch.is_grad_enabled():
            return False
        leaves = (x for x in leaves_of(args, kwargs) if isinstance(x, LazyTensor))
        is_followed = any(leaf.requires_grad for leaf in leaves)
        return is_followed and user_line() not in self.variant.shape.host.unused_lines

    def may_be_made_again(self, state: Callable[[], tuple[tuple[bool, ...], int]]) -> bool:
        """True if its calls so far would compute the same values now.

        state: returns the modes of the model and the state of its guards.
        """
        first = next((made for made in self.calls if made.is_of_model), None)
        if first is not None:
            with torch.set_grad_enabled(first.has_gradients):
                if state() != (self.modes, self.guards):
                    return False
        return all(made.is_as_made for made in self.calls)

    def _keep_slot(self, token: Token) -> None:
        """Keep a token's current value for earlier calls, before a write replaces it."""
        value = token.in_step
        for number, made in enumerate(self.calls):
            args, kwargs = tree_map(lambda x: value if x is token else x, (made.args, made.kwargs))
            self.calls[number] = made._replace(args=args, kwargs=kwargs)

    @property
    def has_drawn(self) -> bool:
        """True if one of its calls has drawn random numbers."""
        return any(made.random_state is not None for made in self.calls)

    @property
    def modes(self) -> tuple[bool, ...] | None:
        """Modes of the model in its variant."""
        return None if self.variant is None else self.variant.shape.modes

    @property
    def expected(self) -> Expected | None:
        """The next call of step 1; None if there is none, or if the step is recorded."""
        if self.variant is None or self.recorded is not None:
            return None
        if self.status.is_over or self.is_revalidating:
            return None
        calls, made = self.variant.shape.calls, len(self.calls)
        return calls[made] if made < len(calls) else None

    @property
    def is_revalidating(self) -> bool:
        """True if the user's code is running for a comparison with step 1, not for the loop."""
        return self.revalidation is not None and self.revalidation.is_recording

    @property
    def trains(self) -> bool:
        """True if its variant has a backward pass."""
        return self.variant is not None and self.variant.trains
