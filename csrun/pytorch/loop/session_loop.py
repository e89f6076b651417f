"""The steps of a Session's loop: each is recorded, or its batch is tokens and it is queued."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.base.mode import RunMode
from csrun.pytorch.errors import CaptureError, call_for_user, failure_of, user_line
from csrun.pytorch.gradients.deferred import Gradient, Gradients
from csrun.pytorch.guards import Guards
from csrun.pytorch.loop import call_order, mismatch
from csrun.pytorch.loop.gradient_accumulation import SeveralBatches
from csrun.pytorch.loop.host_eval import later, now
from csrun.pytorch.loop.readback import Reading
from csrun.pytorch.loop.recorded_step import ReadBefore, RecordedStep, Step
from csrun.pytorch.loop.revalidation import Rechecks
from csrun.pytorch.loop.step_cache import KnownParts
from csrun.pytorch.loop.weight_guard import ParameterWatch, WeightCalls
from csrun.pytorch.lower.dropout_masks import Draw
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.watched_state import WatchedState, written
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.traced import Traced
from csrun.pytorch.run.script_run import ScriptRun
from csrun.pytorch.step.compiled_step import Batches, Part, Queued
from csrun.pytorch.step.expected_calls import MODEL, is_write, name_of, writes_outside
from csrun.pytorch.step.mutation_counters import Modes
from csrun.pytorch.step.tokens import (
    InStep,
    Numbers,
    OfRecorded,
    Slot,
    StepValues,
    Token,
)
from csrun.pytorch.user import Loader


class SessionLoop:
    """What the loop of a Session meets: its batches, `optimizer.step()`, and all that tokens ask.

    line: of the Session; another one of that line has the same parts. forward: the model's own.
    watch: of what the loop does with the model beside its steps.
    """

    def __init__(
        self,
        run: ScriptRun,
        line: str,
        model: torch.nn.Module,
        optimization: Optimization | None,
        forward: Callable[..., Any],
    ) -> None:
        self._run, self._model, self._optimization = run, model, optimization
        self._trainable = list(model.parameters())
        self._parts = KnownParts(
            run, (line, optimization is not None), model, lambda: self._guards.changed
        )
        self._step: Step | None = None
        self.optimizer_state: WatchedState | None = None  # of a block that trains
        self.has_begun = self._is_over = False
        self.watch = ParameterWatch(
            model,
            lambda: self.is_apart,
            lambda: self.is_apart or run.replay.has_lost_weights,
            self.give_back,
        )
        sets = self.watch.module_sets
        self._guards = Guards(model, sets.of_forward(forward), sets)
        self._forward = self._guards.forward
        self._modes = Modes(model, self.watch.sets)
        trained = () if optimization is None else optimization.parameters
        self._gradients = Gradients(
            model, trained, self.watch.name_of, self.watch.sets, run.left_gradients
        )
        self._several = SeveralBatches(model, optimization, self._gradients)
        self._reading = Reading(self, run)
        self._rechecks = Rechecks(model, run, self.watch.module_sets)
        self._weight_calls = WeightCalls(self._called)

    def end(self) -> None:
        """The loop is over: its last step is, too."""
        self._end_step()
        if self.has_begun:
            self.watch.require_in_place()
            self._rechecks.end(self._forward, self._modes, self._guards.state())
        if self.optimizer_state is not None:
            self.optimizer_state.look()
        self._several.say_rest()
        self._is_over = True

    def stop(self, error: BaseException) -> CaptureError | None:
        """The loop has raised: nothing is recorded any more.

        Gives what is to be said instead, of an error in a step that was recorded
        """
        self._weight_calls.end()
        said, self._is_over = None, True
        if self._step is not None and self._step.recorded is not None:
            said = failure_of(error, self._model)
            self._step.recorded.close()
        self._step = None
        for parameter in self._trainable:
            if isinstance(parameter.grad, Traced):
                parameter.grad = None
        return said

    def forget_gradients(self) -> None:
        """The parameters have none any more that only the loop knows of; the run keeps whose."""
        self._run.left_gradients = self._gradients.kept
        self._gradients.vanish()

    def batches(self, loader: Loader) -> Iterator[Any]:
        """One pass over a loader.

        Raises: UsageError where it is read behind the block
        """
        self._end_step()
        call_order.require_read_to_end(loader.orders)
        batches = self._run.batches_of(loader)
        self._run.look_at_data()
        batches.begin(self._run.flush)
        epoch, length = loader.orders.begun - 1, len(loader)
        with batches.pass_open(), self._run.pass_open():
            for position in range(min(length, batches.most)):
                rows = loader.orders.rows(epoch, position)
                yield self._begin_step(batches, epoch * length + position, rows)
            self._end_step()
            self._run.look_at_data()
        loader.orders.is_under_way = False

    def _begin_step(self, batches: Batches, number: int, rows: int | None) -> Any:
        call_order.require_block(self._is_over)
        self._end_step()
        loader, run = batches.loader, self._run
        if not self.has_begun:
            run.take_users_values()
            self.watch.begin()
            self.has_begun = True
        self.watch.look()
        if self.optimizer_state is not None:
            self.optimizer_state.look()
        key = (loader, rows, self._modes(), self._guards.state())
        part = self._parts.at(*key)
        batch = partial(loader.batch, number, loader.changes.taken)
        values = StepValues(run.count, batch=batch, updates=run.updates)
        self._step = step = Step(values, batches, number, part, state=key[-1])
        run.count += 1
        if part is not None and self._parts.is_checked(part):
            if part.shape.takes_weights:
                self._weight_calls.begin()
            return part.shape.tokens_of_batch(self, step.values)
        self.watch.require_in_place()
        run.flush()
        run.read_weights()  # what is asked of this step is computed on the weights as they are
        draw = Draw(run.run.config.seed, run.replay.step, self._gradients.batches)
        step.recorded = RecordedStep(
            self._model,
            loader.batch(number),
            key,
            self._later,
            draw,
            ReadBefore(run, step.values),
            self._begin_gradients,
        )
        return step.recorded.batch

    def _end_step(self) -> None:
        """The loop asks for the next batch, or for none."""
        self._leave_step()
        self._reading.settle()

    def _leave_step(self) -> None:
        self._weight_calls.end()
        step, self._step = self._step, None
        if step is None or step.is_over:
            return
        recorded = step.recorded
        call_order.require_followed(step, self._run.accumulates)
        if step.has_gradients:
            self._leave_open(step)
        elif recorded is not None and not recorded.calls.found:
            recorded.close()  # nothing was done with the batch
        elif recorded is not None:
            self._learn(step, recorded, RunMode.EVAL)
            self._queue(step, ())
        elif step.calls and step.part is not None and not step.part.trains and not step.early:
            self._queue(step, ())

    def _leave_open(self, step: Step) -> None:
        """The loop takes another batch behind `backward()`: both are of one `optimizer.step()`."""
        recorded = step.recorded
        if recorded is not None:
            recorded.close()
        call_order.require_optimizer(self._optimization)
        self._run.accumulate()
        if recorded is not None:
            recorded.is_left = True
            self._learn(step, recorded, RunMode.TRAIN)
        self._several.leave(step)
        step.is_over = True
        if step.early is None:
            self._queue(step, (), ends=False)

    def optimizer_step(self, closure: Any = None) -> None:
        """The loop calls `optimizer.step()`."""
        optimization = self._optimization
        assert optimization is not None, "taken over of a training"
        self._run.updates += 1
        if self._step is None and closure is None and (left := self._several.take_left()):
            self._queue(left, optimization.numbers(), is_computed=True)
            return
        step = call_order.step_of(self._step, closure)
        numbers, recorded = optimization.numbers(), step.recorded
        if recorded is not None:
            self._learn(step, recorded, RunMode.TRAIN)
            assert step.part is not None, "learned"
            if self._run.accumulates:
                step.part = self._parts.ended(step.part, recorded)
            self._several.end_recorded(step)
        else:
            self._edit(step)
        if step.place:
            self._several.require(step)
        step.is_over = True
        if step.early is None:
            self._queue(step, numbers)
        elif self._run.accumulates:  # its gradients are computed
            self._queue(step, numbers, is_computed=True)
        else:
            call_order.require_same_numbers(step, numbers)

    def _edit(self, step: Step) -> None:
        """Have the step be one with the gradients as the loop has edited them."""
        assert step.part is not None, "known by now"
        part = self._parts.edited(step.part, self._gradients.end())
        if not (self._run.accumulates and self._several.are_of_sums(step.part, part)):
            call_order.require_same_edits(step, part)
        step.part = part

    def _learn(self, step: Step, recorded: RecordedStep, mode: RunMode) -> None:
        """A recorded step is over: it is a new part of the loop, or is compared with its part."""
        recorded.finish()
        part = step.part = self._rechecks.saw(self._parts.learn(step, recorded, mode))
        values = step.values

        def loss() -> torch.Tensor | None:
            slot = part.shape.loss
            return None if slot is None else self.read(values, slot)

        recorded.answer(part, loss)

    def _queue(
        self,
        step: Step,
        numbers: tuple[float, ...],
        ends: bool = True,
        is_computed: bool = False,
    ) -> None:
        assert step.part is not None, "known by now"
        place = step.place + is_computed
        queued = Queued(step.part, step.values, step.batch, numbers, place, ends, is_computed)
        self._run.queue(queued)

    def _begin_gradients(self) -> frozenset[str]:
        """`backward()` is called in a step that is recorded, whose gradients are PyTorch's own.

        Gives the names of those that are zeros already.

        Raises: UsageError where gradients are there that it may not add to
        """
        step = self._step
        assert step is not None, "it is"
        assert step.recorded is not None, "it is"
        step.place = self._gradients.added_to()
        step.recorded.draw_as(step.place)
        self._gradients.vanish()
        return self._gradients.zeros if not step.place else frozenset()

    # What tokens ask for.

    def call_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The loop calls the model."""
        step = self._step
        if step is not None and step.recorded is not None:
            mismatch.require_open(step, args, kwargs)
            modes, state = self._modes(), self._guards.state()
            return step.recorded.call(self._forward, args, kwargs, modes, state)
        if step is not None and step.is_rechecking:  # by its own forward
            return call_for_user(self._forward, args, kwargs)
        found = self._called_model(step, args, kwargs) if step is not None else None
        if found is None:
            raise mismatch.another_call(step, args, kwargs)
        return found

    def _called_model(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        modes, state = self._modes(), self._guards.state()
        if step.part is not None and not step.calls and not step.is_over:
            self._switch(step, step.part, modes, state)
            step.state = state
        how = (tuple(kwargs), modes, None if state == step.state else state)
        found = self._called(MODEL, self._forward, args, kwargs, how)
        if found is None and state != step.state:
            raise call_order.changed_between_calls(self._guards.changed)
        return found

    def _switch(self, step: Step, part: Part, modes: tuple[bool, ...], state: int) -> None:
        """Have the step be of the part with these modes and what forward reads now, which may have
        changed since its batch.
        """
        expected = part.shape.modes
        if expected is None or (modes == expected and state == step.state):
            return
        loader = step.batches.loader
        rows = loader.orders.rows(*divmod(step.batch, len(loader)))
        found = self._parts.switched(loader, rows, modes, state)
        if found is not None:
            step.part = found
        elif modes != expected:
            raise call_order.other_modes()
        else:
            self._rechecks.require(part, self._guards.changed)

    def apply(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """One of PyTorch's functions is called on tokens."""
        found = self._called(name_of(func), func, args, kwargs, tuple(kwargs))
        if found is None:
            return self._later(func, args, kwargs)
        if isinstance(args[0], Token) and is_write(func):  # all that have it see what it is now
            args[0].slot = found.slot
            return args[0]
        return found

    def _later(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a function will give when it is read; now, where it writes into the loop's own."""
        leaves = leaves_of(args, kwargs)
        if any(isinstance(leaf, Gradient) for leaf in leaves):
            return Gradient.__torch_function__(func, (), args, kwargs)
        self.watch.require_none(func, leaves)
        if writes_outside(func, args):
            return now(self, func, args, kwargs)
        return later(self, func, args, kwargs)

    def _called(self, name: str, func: Any, args: Any, kwargs: Any, how: tuple[Any, ...]) -> Any:
        """The results of a call that step 1 made in this place, too; None for another."""
        step = self._step
        expected = None if step is None else step.expected
        if step is None or step.part is None or expected is None:
            return None
        if not expected.is_called(name, leaves_of(args, kwargs), how):
            if name == expected.name and name != MODEL:
                step.strayed = f" ({name} in {user_line()} is not called as it was)"
            return None
        if not step.calls:
            step.part.require_constants()
            step.again = self._rechecks.begun(step.part, step.state)
        step.calls += 1
        if step.again is not None:
            step.again.call(expected, func, args, kwargs)
        return expected.tokens(self, step.values)

    def backward(self, token: Numbers) -> None:
        """The loop calls `backward()`."""
        step = self._step
        loss = step.part.shape.loss if step is not None and step.part is not None else None
        is_loss = isinstance(token, Token) and loss is not None and token.slot is loss
        if step is None or not is_loss or token.step is not step.values:
            raise mismatch.another_loss(step, token)
        if step.is_backward:
            raise UsageError(f"{user_line()}: backward() must be called once for each batch")
        assert step.part is not None, "it has the loss"
        step.part.require_constants()  # one may be written between two calls
        self._weight_calls.end()
        place = self._gradients.added_to()
        call_order.require_same_place(step, place)
        step.place = place
        self._gradients.require_same_zeros(step.part.recording)
        if place:
            self._gradients.require_same(step.part.recording.first_gradients)
        if step.again is not None:
            self._gradients.vanish()
            step.again.backward()
        self._gradients.begin(step.part.recording.first_gradients, step.values)
        step.is_backward = True

    def read(self, step: StepValues, slot: Slot) -> torch.Tensor:
        """The numbers of a value."""
        return self._reading.read(step, slot)

    def loss(self, step: StepValues) -> float:
        """The loss of a step, which has run then."""
        return self._reading.loss(step)

    def settle_later(self, computation: OfRecorded) -> None:
        """It is to be settled behind the recorded step that the loop is in."""
        self._reading.settle_later(computation)

    def want(self, places: Sequence[InStep]) -> None:
        """Have values; where the program does not give them so far, it is compiled once more."""
        self._reading.want(places)

    def require_current(self, places: Sequence[InStep]) -> None:
        """Raises: UsageError for a view of a weight that the optimizer has changed since"""
        self._reading.require_current(places)

    def run_early(self, values: StepValues) -> None:
        """Have the step that the loop is in run before `optimizer.step()`, if it is this one."""
        step = self._step
        if step is not None and step.values is values and not step.is_over and step.early is None:
            trains = self._optimization is not None and step.part is not None and step.part.trains
            if trains and self._run.accumulates:
                if not step.is_backward:
                    step.place = self._gradients.added_to() if self._gradients.batches else 0
                step.early = ()
                self._queue(step, (), ends=False)
                return
            step.early = self._optimization.numbers() if trains and self._optimization else (0.0,)
            self._queue(step, step.early)

    def zero_grad(self, own: Callable[[bool], None], set_to_none: bool) -> None:
        """The loop calls `optimizer.zero_grad()`."""
        if (self._step is not None and self._step.has_gradients) or not self._gradients.clear(
            set_to_none
        ):
            own(set_to_none)

    @property
    def is_replayed(self) -> bool:
        """Whether the loop is in steps that an earlier run has taken, whose weights are gone."""
        return self._run.replay.is_on

    @property
    def is_apart(self) -> bool:
        """Whether what happens to the user's own Parameters is none of a step that is recorded."""
        step = self._step
        return self.has_begun and (step is None or step.recorded is None or step.is_over)

    def give_back(self) -> None:
        """Have the user's own objects be as the store is."""
        self._run.flush()
        self._run.give_back()

    def require_state_as_given(self) -> None:
        """Raises: UsageError where the script has written into the optimizer's state"""
        if not self._run.users.has_optimizer_as_given():
            raise written()

    def with_memory(self, state: dict[str, Any]) -> dict[str, Any]:
        """The model's state_dict, with numbers also where the model has no memory."""
        return self._run.users.state_dict(state, self._run.saved)

    def summarize(self, name: str, value: Any) -> None:
        """Write a number of this step into the run's events."""
        call_order.require_training(self._run.users.optimization)
        number = float(value.item() if hasattr(value, "item") else value)
        self._run.flush()
        self._run.summarize(name, number)
