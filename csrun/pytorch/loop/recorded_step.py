"""A step of the loop that is recorded, from its batch to its end."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map, tree_structure

from csrun.pytorch.errors import user_line
from csrun.pytorch.loader.data import require_rows
from csrun.pytorch.loop.finished_values import FinishedValues
from csrun.pytorch.loop.recorded_checks import (
    ForwardCalls,
    is_of_forward,
    line_of_weights_in_edits,
    norm_in,
)
from csrun.pytorch.loop.recorded_gradients import RecordedGradients
from csrun.pytorch.loop.recorded_graph import RecordedGraph
from csrun.pytorch.loop.recorded_reads import HostComputedValues, ReplayedReads
from csrun.pytorch.lower.dropout_masks import MaskKey
from csrun.pytorch.lower.interpret import read_batch
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.host_writes import require_current
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import Recording, Ref
from csrun.pytorch.record.reuse.operator_cache import CachedOperators
from csrun.pytorch.record.torch_modes import collection_paused, unrecorded
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.step.loop_calls import MODEL, Calls, gradients_of
from csrun.pytorch.step.tokens import LazyTensor
from csrun.pytorch.step.variant import KEEPS, StepVariant


class RecordedStep:
    """A step on traced tensors, from its batch to `answer`.

    key: of the variant in the cache.
    batch: for the loop.
    calls: of the loop.
    is_left: the loop takes another batch without `optimizer.step()`.
    is_cleared: it has also cleared the gradients.
    has_new_buffers: forward has created buffers of the model.
    modes, state: of the model and of the guards, at its first call.
    end_early: ends the recording when a value of a gradient is read.
    before_read: called when a value is read before the step's end.
    gradients: their values.
    graph: graph of the recording; known after `finish`, as the next two.
    written_weights: parameters that forward has written; the step starts from their new values.
    live_counters: integer buffers that it reads or writes.
    """

    CALLS: ClassVar[type[Calls]] = Calls
    graph: RecordedGraph
    written_weights: Mapping[str, torch.nn.Parameter]
    live_counters: Collection[str]
    _stale: Mapping[Ref, str]
    _created: list[Any]  # tensors of the loop that stand for traced ones
    _returned: tuple[Ref, ...] = ()  # values that the program must return, besides those read

    def __init__(
        self,
        model: torch.nn.Module,
        batch: Any,
        key: tuple[Any, ...],
        later: Callable[..., Any],
        draw: MaskKey,
        before: ReplayedReads,
        require_cleared: Callable[[], Collection[str]],
        takes_arguments: bool,
        known: CachedOperators,
        follows: bool,
    ) -> None:
        self.key = key
        self.is_left = self.is_cleared = self.has_new_buffers = False
        self.modes: tuple[bool, ...] = ()
        self._created = []
        self.state = 0
        self._recorder = recorder = StepRecorder(model)
        recorder.takes_arguments, recorder.repeated.known = takes_arguments, known
        self.calls = self.CALLS(recorder, later)
        made = recorder.draws.made
        are_repeated = recorder.has_updates or follows
        self._forward = ForwardCalls(self.calls.found, [], made, are_repeated)
        self._before, self._numbers = before, HostComputedValues(before.run, draw)
        self.end_early: Callable[[], None] = _no_end
        self.before_read: Callable[[], None] = _ignore
        numbers = self._numbers
        self.gradients = RecordedGradients(numbers.compute, lambda: numbers.draw.batch)
        recorder.reader = self._number_so_far
        read_batch(recorder)
        recorder.may_read_in_forward = recorder.may_draw = True
        recorder.backward.require_cleared = require_cleared
        require_rows(user_line(), batch)
        with ExitStack() as opened:
            opened.enter_context(collection_paused())
            opened.enter_context(recorder)
            self.batch = recorder.batch(batch)
            self._batch_refs = tree_map(_ref_of, self.batch)  # before the loop changes its dict
            if follows and not recorder.has_updates:  # whose numbers differ in each step
                opened.enter_context(self.calls.follow())
            opened.enter_context(self.calls)
            self._modes = opened.pop_all()

    def _number_so_far(self, traced: TracedTensor) -> torch.Tensor:
        """Return the numbers of a value that is read before the end of the step."""
        recorder, value = self._recorder, traced.value
        self.before_read()
        so_far = recorder.so_far()
        if not is_of_forward(so_far, value):
            if norm_in(recorder.so_far(recorder.backward.gradients), value):
                self.end_early()
                return recorder.reader(traced)
            gradients = self.gradients
            return self._before.tensor_of(value, lambda: {value: gradients.number(so_far, value)})
        if not recorder.scopes.is_in_forward and self._forward.keeps(so_far, value):
            recorder.note_varying(KEEPS)
        return self._before.tensor_of(value, lambda: self._numbers.compute(so_far, [value]))

    def _value_of(self, recording: Recording, value: Ref) -> torch.Tensor:
        return self._numbers.compute(recording, [value])[value].clone()

    @property
    def cause(self) -> str:
        """Reason why other steps may have other graphs or tensors; empty without one."""
        recorder = self._recorder
        if recorder.varies or recorder.has_updates or not recorder.backward.end:
            return recorder.varies
        if len(recorder.operators) == recorder.backward.end:  # no edits of gradients
            return ""
        line = line_of_weights_in_edits(recorder.so_far(recorder.backward.gradients))
        return f"{line}: gradients are edited with a function of weights" if line else ""

    @property
    def has_loss(self) -> bool:
        """True if `backward()` was called."""
        return self._recorder.has_loss

    def traced(self, tree: Any) -> Any:
        """Return the loop's arguments, with traced tensors in place of tokens."""
        return tree if self.calls.traced is None else self.calls.traced(tree)

    def call(
        self,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Any,
        modes: tuple[bool, ...],
        state: int,
    ) -> Any:
        """Call the model. modes, state: of its modules and of its guards."""
        # csrun's own reads of tensors are not calls of the loop
        with torch._C.DisableTorchFunction():
            gradients = gradients_of(leaves_of(args, kwargs))
            args, kwargs = self.calls.with_inputs((args, kwargs))
            operands = self.calls.operands(args, kwargs)
        begin, drawn = len(self._recorder.operators), len(self._recorder.draws.made)
        self.calls.depth += 1
        try:
            results = self._recorder.call_model(forward, args, kwargs)
            if self._recorder.take_new_buffers(self._value_of):
                self.has_new_buffers = True
                results = self._recorder.call_model(forward, args, kwargs)
        finally:
            self.calls.depth -= 1
        if not self.calls.depth:
            self._forward.operators.append(slice(begin, len(self._recorder.operators)))
            if not self.modes:
                self.modes, self.state = modes, state
            how = (tuple(kwargs), modes, None if state == self.state else state)
            spec = tree_structure((args, kwargs))
            made = tuple(self._recorder.draws.made[drawn:])
            self.calls.note(MODEL, operands, results, how, gradients, spec, draws=made)
        return results

    def within(self, scope: str | None) -> AbstractContextManager[None]:
        """Return a context manager in a module that the loop calls by itself."""
        return self._recorder.scopes.within(scope)

    def backward(self, token: LazyTensor) -> bool:
        """Call backward() on the traced tensor of a token; False if it belongs to another step."""
        with torch.enable_grad():
            traced = self.traced(token)
        if not isinstance(traced, TracedTensor):
            return False
        traced.backward()
        return True

    def draw_as(self, place: int) -> None:
        """Draw dropout masks as for batch `place` of the step."""
        self._numbers.draw = replace(self._numbers.draw, batch=place)

    def close_first(self, close: Callable[[], None]) -> None:
        """Call a function before the recording's modes are left."""
        self._modes.callback(close)

    def close(self) -> None:
        """Stop recording."""
        self._modes.close()
        self.calls.end()

    @property
    def is_finished(self) -> bool:
        """True if the recording has ended."""
        return self._recorder.is_finished

    def finish(self, first: Sequence[str], *, is_one_of_many: bool) -> None:
        """End the recording. is_one_of_many: other steps have other graphs over the same store.

        first: names of the weights, as in `RecordedGraph.read_model`.
        """
        recorder = self._recorder
        self._created = recorder.fresh.taken_of_loop()
        recording = recorder.finish()
        by_host = recorder.writes.by_host
        by_host.require_unused()
        self.written_weights, self._stale = by_host.written, by_host.stale
        self.live_counters = recorder.counters.live
        self.is_cleared = self.is_left and not recording.gradients
        if self.is_cleared:  # for another batch of its shape they differ
            recording = replace(recording, gradients=recording.first_gradients)
        forward, batch = self._forward, self._batch_refs
        self.graph = RecordedGraph(recorder, recording, batch, forward, self._returned)
        if is_one_of_many or self.graph.host_line:
            self.graph.read_model(first)

    @property
    def recording(self) -> Recording:
        """The recording, after `finish`."""
        return self.graph.recording

    def answer(
        self,
        variant: StepVariant,
        returned: Callable[[Ref], torch.Tensor | None],
        norm: Callable[[torch.dtype], torch.Tensor],
    ) -> None:
        """Read the step's traced tensors through `FinishedValues` from now on.

        returned, norm: as there.
        """
        self._numbers.keep_weights(self.recording)
        values = FinishedValues(
            self.graph.computed,
            variant,
            self._numbers,
            self.gradients,
            self._forward,
            self._before,
            returned,
            norm,
        )

        stale = self._stale  # the recorder must not keep itself

        def tensor_of(traced: TracedTensor) -> torch.Tensor:
            require_current(stale, traced.value, user_line())
            return values.tensor_of(traced)

        self._recorder.answer(tensor_of, self.calls.later)

    def fill_created(self) -> None:
        """Give the loop's own tensors, into which it has written values of the step, their
        numbers.
        """
        for created, traced in self._created:
            if (tensor := created()) is not None:
                with unrecorded(), torch.no_grad():
                    tensor.data.copy_(traced.numbers())
                    traced.share(tensor.data)
        self._created = []


def _ignore() -> None:
    pass


def _no_end() -> None:
    raise AssertionError("given before it is recorded")


def _ref_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, TracedTensor) else leaf
