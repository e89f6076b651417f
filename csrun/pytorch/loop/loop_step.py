"""The step that a loop is in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.loop.revalidation import Revalidation
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.recording import LeafSource, Ref
from csrun.pytorch.record.same_numbers import have_same_numbers
from csrun.pytorch.step.expected_calls import MODEL, Expected, is_write
from csrun.pytorch.step.host_values import HostResults
from csrun.pytorch.step.snapshots import Snapshot
from csrun.pytorch.step.step_outputs import Slot, StepOutputs
from csrun.pytorch.step.step_status import StepPhase, StepStatus
from csrun.pytorch.step.tokens import Numbers, Token
from csrun.pytorch.step.variant import Batches, StepVariant


class MadeCall(NamedTuple):
    """A call of a step on tokens that step 1 made, too. has_gradients: autograd records it.

    random_state: of PyTorch's generator before it, where forward draws.
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


@dataclass(eq=False, slots=True)
class LoopStep:
    """The step that a loop is in, from its batch to `optimizer.step()` or the next batch.

    batch: its number among the loader's. variant: None until it is known, in a step that is
    recorded for the first time. guards: number of the state of the guards at the batch. rows:
    samples of the batch; None where samples are batches themselves. calls: those of the expected
    calls that were made. given: tensors of the script among their arguments. place: how many
    batches of its `optimizer.step()` came before it, from `backward()` or the first value read on.
    numbers: the optimizer's, that it was ordered with. is_updated: its update was queued before
    `optimizer.step()`. is_computed: what the host computes is given. has_other_shapes: it has other
    shapes than in step 1. strayed: a call of the expected function with other arguments, for
    messages. changed: why the program cannot have the step's numbers, for messages. revalidation:
    set where it is compared with step 1 again.
    """

    outputs: StepOutputs
    batches: Batches
    batch: int
    variant: StepVariant | None = None
    guards: int = 0
    rows: int | None = None
    recorded: RecordedStep | None = None
    calls: list[MadeCall] = field(default_factory=list)
    given: dict[Ref, torch.Tensor] = field(default_factory=dict)
    place: int = 0
    numbers: tuple[float, ...] = ()
    is_updated: bool = False
    is_computed: bool = False
    has_other_shapes: bool = False
    strayed: str = ""
    changed: str = ""
    revalidation: Revalidation | None = None

    @property
    def counters(self) -> Mapping[str, int]:
        """Increments of integer buffers, by name."""
        assert self.variant is not None, "known by now"
        computed = self.variant if self.recorded is None else self.recorded
        return computed.recording.counters

    @property
    def inputs(self) -> tuple[torch.Tensor, ...] | None:
        """Tensors that its program takes; None where a loader gives them."""
        assert self.variant is not None, "known by now"
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
        """True if its program takes a tensor that no call has been given and forward not drawn."""
        if self.variant is None or self.recorded is not None:
            return False
        leaves = self.variant.recording.script_leaves
        return any(leaf.value not in self.given for leaf in leaves)

    def note(self, expected: Expected, func: Any, args: Any, kwargs: Any) -> bool:
        """Note a call that was made; False if it is given another tensor of the script than an
        earlier call of the step, where step 1 gave the same.
        """
        own = self._given_to(expected, leaves_of(args, kwargs))
        if own is None:
            return False
        if own:
            args, kwargs = tree_map(lambda x: own.get(id(x), x), (args, kwargs))
        if not self.compute_on_host():
            return False
        state = self._draw(expected)
        self.calls.append(MadeCall(expected, func, args, kwargs, torch.is_grad_enabled(), state))
        if is_write(func) and isinstance(args[0], Token):
            self._keep_slot(args[0])
        return True

    def compute_on_host(self) -> bool:
        """Compute what the host does of its variant's step, once all that it takes is known.

        False if a result has another shape than in step 1.
        """
        assert self.variant is not None, "known by now"
        host = self.variant.shape.host
        if not host or self.is_computed or not host.given <= self.given.keys():
            return True
        assert self.outputs.batch is not None, "it began with one"
        found = host.compute(self.outputs.batch(), {ref: self.given[ref] for ref in host.given})
        self._take(found)
        return found is not None

    def take_variant(self, variant: StepVariant, computed: HostResults | None = None) -> None:
        """Be a step of a variant, before its first call. computed: by the host, if it is known."""
        self.variant, self.given, self.is_computed = variant, {}, False
        self.has_other_shapes = False
        if computed is not None:
            self._take(computed)

    def _take(self, computed: HostResults | None) -> None:
        self.is_computed = computed is not None
        self.has_other_shapes = computed is None or not computed.is_exact
        self.given.update({} if computed is None else computed.values)

    def _draw(self, expected: Expected) -> torch.Tensor | None:
        """Draw what forward would draw; return the state of the generator before, if it draws."""
        if not expected.draws:
            return None
        state = torch.get_rng_state()
        for draw in expected.draws:
            numbers = draw.again()
            if draw.value is not None:
                self.given[draw.value] = numbers
        return state

    def _given_to(self, expected: Expected, leaves: list[Any]) -> dict[int, torch.Tensor] | None:
        """Return copies of the script's tensors among arguments, by id; None if one is another."""
        own: dict[int, torch.Tensor] = {}
        for operand, given in zip(expected.operands, leaves, strict=True):
            if type(operand) is Slot and operand.is_argument:
                if operand.value not in self.given:
                    self.given[operand.value] = given.detach().clone()
                elif not have_same_numbers(self.given[operand.value], given):
                    return None
                own[id(given)] = self.given[operand.value]
        return own

    def may_lead_to_loss(self, args: Any, kwargs: Any) -> bool:
        """True for arguments of a result of unknown shape that need not be a metric's."""
        if self.variant is None or self.has_gradients or not torch.is_grad_enabled():
            return False
        leaves = (x for x in leaves_of(args, kwargs) if isinstance(x, Numbers))
        is_followed = any(leaf.requires_grad for leaf in leaves)
        return is_followed and user_line() not in self.variant.shape.host.unused_lines

    def may_be_made_again(self, modes: tuple[bool, ...], guards: int) -> bool:
        """True if its calls so far would compute the same now."""
        if any(made.is_of_model for made in self.calls) and (self.modes, self.guards) != (
            modes,
            guards,
        ):
            return False
        return all(made.is_as_made for made in self.calls)

    def _keep_slot(self, token: Token) -> None:
        """Keep the present value of a token, which a write gives another one, in the calls."""
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
    def status(self) -> StepStatus:
        return self.outputs.status

    @property
    def expected(self) -> Expected | None:
        """The call of step 1 that comes next; None if there is none, or the step is recorded."""
        if self.variant is None or self.recorded is not None:
            return None
        if self.status.is_over or self.is_revalidating:
            return None
        calls = self.variant.shape.calls
        return None if len(self.calls) == len(calls) else calls[len(self.calls)]

    @property
    def is_revalidating(self) -> bool:
        """True if the user's code runs to be compared with step 1, not for the loop."""
        return self.revalidation is not None and self.revalidation.is_recording

    @property
    def has_gradients(self) -> bool:
        """True if the loop is between `backward()` and `optimizer.step()`."""
        return self.status.phase is StepPhase.BACKWARD

    @property
    def trains(self) -> bool:
        """True if its variant has a backward pass."""
        return self.variant is not None and self.variant.trains
