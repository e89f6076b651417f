"""Traced tensors that replace tokens: a step that began on tokens is recorded after all."""

from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.loop.host_eval import Computation, LazyResult, Result
from csrun.pytorch.loop.loop_step import TokenCall
from csrun.pytorch.loop.recorded_step import RecordedStep
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.loop_calls import BACKWARD
from csrun.pytorch.step.loop_writes import result_of
from csrun.pytorch.step.mutation_counters import Modes
from csrun.pytorch.step.step_outputs import Slot, StepOutputs, StepValue
from csrun.pytorch.step.tokens import Token


class TracedTokens:
    """Traced tensors of a recorded step, by the tokens that the loop holds.

    outputs: of the step on tokens; arrays: slots of its batch.
    state: returns the modes of the model and the state of its guards.
    modes: those of the model.
    """

    def __init__(
        self,
        recorded: RecordedStep,
        outputs: StepOutputs,
        arrays: Sequence[Slot],
        state: Callable[[], tuple[tuple[bool, ...], int]],
        modes: Modes,
    ) -> None:
        self._recorded, self._outputs, self._state = recorded, outputs, state
        self._modes = modes
        batch = [leaf for leaf in tree_leaves(recorded.batch) if isinstance(leaf, TracedTensor)]
        self._traced: dict[Slot, TracedTensor] = dict(zip(arrays, batch, strict=True))
        self._computed: dict[Computation, list[Any]] = {}
        # gradients as backward() has left them, which the loop may write
        self._unwritten: dict[Slot, TracedTensor] = {}
        outputs.recorded = ChainMap(self._unwritten, self._traced)

    def call_again(self, made: TokenCall) -> None:
        """Repeat a call of the loop, whose results it has as tokens."""
        args, kwargs = self.of((made.args, made.kwargs))
        if made.random_state is not None:
            torch.set_rng_state(made.random_state)
        with (
            torch.set_grad_enabled(made.has_gradients),
            self._recorded.within(made.expected.scope),
        ):
            if made.is_of_model:
                with self._modes.kept_as(made.expected.how[1]):
                    found = self._recorded.call(made.func, args, kwargs, *self._state())
            else:
                found = result_of(made.func, args, made.func(*args, **kwargs))
        for slot, traced in zip(
            tree_leaves(made.expected.results), tree_leaves(found), strict=True
        ):
            if isinstance(slot, Slot):
                self._traced[slot] = traced
                if made.expected.name == BACKWARD:
                    self._unwritten[slot] = traced.snapshot()

    def of(self, tree: Any) -> Any:
        """Replace each token, and each lazy result of tokens, in arguments by a traced tensor."""
        return tree_map(self._value, tree)

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, Token | StepValue) and leaf.step is self._outputs:
            at = leaf.in_step if isinstance(leaf, Token) else leaf
            found = self._traced.get(at.slot)
            if leaf is at:
                found = self._unwritten.get(at.slot, found)
            return leaf if found is None else _apart(found, at.is_detached)
        if isinstance(leaf, LazyResult):
            if not self._is_of_step(leaf.result.of):
                return leaf
            return _apart(self._value(leaf.result), leaf.is_detached)
        if isinstance(leaf, Result):
            return _apart(self._result(leaf), leaf.is_detached)
        return leaf

    def _is_of_step(self, computation: Computation) -> bool:
        return any(
            isinstance(source, StepValue) and source.step is self._outputs
            for source in computation.sources()
        )

    def _result(self, result: Result) -> Any:
        if result.of not in self._computed:
            self._computed[result.of] = result.of.call_again(self._value)
        return self._computed[result.of][result.number]


def _apart(found: torch.Tensor, is_detached: bool) -> torch.Tensor:
    """Return a value, detached if the loop's token is."""
    return found.detach() if is_detached and found.requires_grad else found
