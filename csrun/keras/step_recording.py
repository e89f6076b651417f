"""Tracing of a Keras model: forward, loss and backward pass, recorded once per mode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from xdsl.dialects.builtin import ModuleOp, StringAttr

from csrun.base.errors import UsageError
from csrun.base.half_formats import HalfFormat, storage_format
from csrun.base.run_config import CSRunConfig
from csrun.cirh import set_storage
from csrun.cirh.ops.learning import UPDATE_SCOPE
from csrun.cirh.ops.model import OutputOp
from csrun.compiler import CompileOptions, rebatch, separate_update
from csrun.data import Dataset
from csrun.estimator.model_trace import TracedModel
from csrun.executable import RunMode
from csrun.keras.custom_metrics import has_custom_metrics
from csrun.keras.custom_step import (
    CustomStep,
    CustomStepMetrics,
    CustomTestStep,
    OtherStepError,
    ReturnedValues,
    has_custom_step,
)
from csrun.keras.host_metrics import (
    FitMetrics,
    KerasMetrics,
    has_metrics,
    warn_of_layer_metrics,
)
from csrun.keras.metric_calls import masks_of, recorded_metrics
from csrun.keras.model_call import plain_errors, without_host_draws
from csrun.keras.model_precision import storage_of
from csrun.keras.optimizer_rules import KerasLearning, learning_of, learning_of_states
from csrun.keras.optimizer_step import OPTIMIZER_FOLDER, OptimizerStep
from csrun.keras.recorded_draws import recorded_draws
from csrun.keras.recorded_dropout import recorded_dropout
from csrun.keras.several_updates import SeveralUpdates, UnknownOptimizerError, add_optimizer
from csrun.keras.step_refusals import (
    advice_on_statistics,
    named_layer,
    named_library_layer,
    named_missing_loss,
    require_no_draws,
    require_plain_step,
)
from csrun.keras.step_scope import StepScope
from csrun.keras.torch_backend import keras
from csrun.keras.variables_module import KerasModel, stored_name, tensor_at
from csrun.pytorch.lower.interpret import read_batch
from csrun.pytorch.lower.to_cirh import module_of, output_name
from csrun.pytorch.record.recorder import StepRecorder
from csrun.pytorch.record.recording import Recording, Ref
from csrun.records.checkpoints import Checkpoint


@dataclass(frozen=True)
class FitTrace:
    """Demands of a `fit` on the trace of its training step.

    takes_metrics: the step returns labels and predictions, if the model has metrics.
    rate_changes: a learning rate that is a variable is passed with each step.
    """

    takes_metrics: bool = False
    rate_changes: bool = False


NO_FIT = FitTrace()


def trace_keras(
    model: KerasModel,
    dataset: Dataset,
    config: CSRunConfig,
    options: CompileOptions,
    last: int | None = None,
    start: Checkpoint | None = None,
    fit: FitTrace = NO_FIT,
) -> TracedModel:
    """Return the program of a mode before the passes, its metrics, and initial values of its
    weights.

    last: the training's last step, if it is given. start: the checkpoint that it begins with. fit:
    its `fit`, if any

    Raises: UsageError for a precision, batch or optimizer that is not supported; CaptureError for
    an operator
    """
    storage, mode = _storage_of(model, config), options.run_mode
    require_plain_step(model.keras, mode)
    trains = mode is RunMode.TRAIN
    learning = KerasLearning({})
    if trains:
        learning = learning_of(model, storage is not None, start, fit.rate_changes)
    if learning.step is not None:
        learning.step.require_countable(last)
    step = _KerasStep(model, mode, learning.step)
    try:
        recording = step.record(dataset)
    except OtherStepError:
        if options.parts > 1 or storage is not None:
            raise
        step, recording = _recorded_updates(model, dataset)
        step.updates.require_countable(last)
        learning = learning_of_states(step.updates.rates, start)
    require_no_draws(recording)
    is_measured = mode is RunMode.EVAL or (fit.takes_metrics and trains)
    if is_measured and step.custom is None:
        warn_of_layer_metrics(model.keras, step.calls)
        has_compiled = len(step.batch) > 1 and has_metrics(model.keras, step.calls)
        is_measured = has_compiled or bool(step.calls) or has_custom_metrics(model.keras)
    specs = dataset.element_spec()
    recording = _with_names(recording, dataset.names(len(specs)))
    wanted = _refs(step.outputs) if mode is RunMode.PREDICT else []
    if is_measured:
        wanted = _refs(step.measured)
    scaling = None if storage is None else learning.scaling
    with named_layer():
        module = module_of(recording, learning.algorithms, mode, wanted, learning.clipping, scaling)
    if storage is not None:
        set_storage(module, storage)
    update = None
    if learning.step is not None and options.parts > 1:
        update = separate_update(module, options, learning.step.assigns)
    traced = replace(
        step.traced(module, wanted, is_measured, fit),
        update=update,
        changed_values=learning.changed_values,
        identity=learning.identity,
    )
    with advice_on_statistics(model.keras, options, specs[0].shape[0]):
        rebatch(module, options, specs[0].shape[0])
    return traced


def _storage_of(model: KerasModel, config: CSRunConfig) -> HalfFormat | None:
    """Return the storage format. Raises: UsageError for a precision that is not supported"""
    if config.arithmetic != "float32":
        raise UsageError(
            "runconfig.precision must be float32, or mixed, for a Keras model, got "
            f"{config.precision}"
        )
    configured = storage_format(config.precision, config.cb16_exponent_bias)
    return storage_of(model.keras, configured)


def example_of(dataset: Dataset) -> tuple[Any, ...]:
    """Return a batch of zeros."""
    specs = dataset.element_spec()
    return dataset.nested([torch.zeros(spec.shape, dtype=_dtype(spec.dtype)) for spec in specs])


def _recorded_updates(model: KerasModel, dataset: Dataset) -> "tuple[_KerasStep, Recording]":
    """Record a train_step with the updates that it makes, by any optimizers."""
    optimizers: dict[str, Any] = {}
    while True:
        step = _KerasStep(model, RunMode.TRAIN, updates=SeveralUpdates(model, optimizers))
        try:
            return step, step.record(dataset)
        except UnknownOptimizerError as error:
            add_optimizer(optimizers, model.keras, error)
        finally:
            step.updates.clear()


class _KerasStep:
    """A step of a Keras model on traced tensors. batch, outputs: in the model's structure.

    custom: the class's own train_step or test_step, if it has one, whose values metrics are
        computed from.
    masks: as of `masks_of`. calls: of metrics, in call or compute_loss.

    update: that of the optimizer, if it is recorded.
    updates: those of train_step, if it has others than one update by the optimizer.
    """

    def __init__(
        self,
        model: KerasModel,
        mode: RunMode,
        update: OptimizerStep | None = None,
        updates: SeveralUpdates | None = None,
    ) -> None:
        self._model, self._mode, self._update, self._updates = model, mode, update, updates
        self._module = next((each.module for each in (update, updates) if each), model.module)
        self._recorder = StepRecorder(self._module)
        self._recorder.may_draw = True
        read_batch(self._recorder)
        self.custom: ReturnedValues | None = updates
        if updates is None and mode is RunMode.TRAIN and has_custom_step(model.keras):
            trained = [(v, tensor_at(self._module, stored_name(v))) for v in model.trained]
            self.custom = CustomStep(model.keras, trained)
        elif mode is RunMode.EVAL and has_custom_step(model.keras, "test_step"):
            self.custom = CustomTestStep(model.keras)
        layers = model.keras._flatten_layers(include_self=False)
        self._recorder.scopes.name_modules({each: each.path or each.name for each in layers})

    def record(self, dataset: Dataset) -> Recording:
        """Record the step."""
        recorder, trains = self._recorder, self._mode is RunMode.TRAIN
        self._module.train(trains)
        example = example_of(dataset)
        if self.custom is not None:
            self.custom.build(example)
        with recorder:
            self.batch = recorder.batch(example)
            are_all = self.custom is not None
            with recorded_metrics(self._model.keras, are_all) as self.calls, named_library_layer():
                loss = recorder.call_model(self._forward, self.batch, {})
            for variable in self._model.variables:  # as checkpoints have those of other modes
                recorder.traced(tensor_at(self._module, stored_name(variable)))
            if loss is not None and self._update is not None:
                return self._with_update(loss, self._update)
            if loss is not None:
                loss.backward()
        return recorder.finish()

    @property
    def updates(self) -> SeveralUpdates:
        """Updates of train_step."""
        assert self._updates is not None, "given"
        return self._updates

    @property
    def measured(self) -> Any:
        """Tensors that metrics are computed from: the batch, outputs, their masks, and arguments
        of the metrics' calls in the step.

        Features are among them if the model's class computes metrics itself.
        """
        first = self.batch[0] if has_custom_metrics(self._model.keras) else ()
        given = [call.outputs for call in self.calls]
        if self.custom is not None:
            return given, self.custom.values
        return (first, *self.batch[1:]), self.outputs, self.masks, given

    def _with_update(self, loss: Any, update: OptimizerStep) -> Recording:
        """Record the backward pass and the update, whose operators have a separate scope."""
        recorder = self._recorder
        loss.backward(update.seed())
        first, forward_end = len(recorder.operators), recorder.backward.forward_end
        update.record(recorder)
        recording = recorder.finish()
        assert forward_end is not None, "there is a backward pass"
        updating = (replace(op, scope=UPDATE_SCOPE) for op in recording.operators[first:])
        operators = (*recording.operators[:first], *updating)
        return replace(recording, operators=operators, forward_end=forward_end)

    def _forward(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Return the loss; None in a prediction."""
        model, trains = self._model, self._mode is RunMode.TRAIN
        tensors = [(v, tensor_at(self._module, stored_name(v))) for v in model.variables]
        with self._scope(tensors) as scope:
            # A copy, since Keras multiplies masks into it in place.
            weights = tree_map_only(torch.Tensor, torch.clone, sample_weight)
            sample = tree_leaves(x)[0]
            with (
                without_host_draws(),
                plain_errors(),
                recorded_dropout(sample, trains),
                recorded_draws(sample),
            ):
                if self.custom is not None:
                    data = keras.utils.pack_x_y_sample_weight(x, y, weights)
                    loss = self.custom.call(data, self.calls)
                    if trains:
                        self._assign(tensors, scope)
                    return loss
                if self._mode is RunMode.PREDICT:
                    predicted = model.keras.predict_step(keras.utils.pack_x_y_sample_weight(x))
                    self.outputs = _with_copies(predicted)
                    return None
                self.outputs = model.keras(x, training=trains)
                self.masks = masks_of(self.outputs)
            with named_missing_loss(model.keras):  # omits `training` if the class does not take it
                loss = model.keras._compute_loss(
                    x=x, y=y, y_pred=self.outputs, sample_weight=weights, training=trains
                )
        if trains:
            self._assign(tensors, scope)
        return loss

    def _scope(self, tensors: Sequence[tuple[Any, Any]]) -> StepScope:
        """Scope of the step, in which variables are these tensors."""
        require_readable = None if self.custom is None else self.custom.require_readable
        states = [] if self._updates is None else self._updates.tensors
        return StepScope(self._model.keras, tensors, require_readable, states)

    def _assign(self, tensors: Sequence[tuple[Any, Any]], scope: keras.StatelessScope) -> None:
        """Write the variables that layers have assigned.

        Raises: UsageError for a trained one, which the update would change from its old value
        """
        for number, (variable, before) in enumerate(tensors):
            new = scope.state_mapping[id(variable)]
            if new is before:
                continue
            if number < len(self._model.trained):
                raise UsageError(
                    f"variable {variable.path} is trained, and a layer assigns it in call(): use "
                    "the changed value there without assign(), or give the layer a constraint"
                )
            before.copy_(new.detach())

    def traced(
        self, module: ModuleOp, wanted: Sequence[Ref], is_measured: bool, fit: FitTrace
    ) -> TracedModel:
        """Return the traced model of the recorded step, with the `wanted` outputs; those of a
        prediction are named here.
        """
        metrics = None
        if is_measured:
            kind = FitMetrics if fit.takes_metrics else KerasMetrics
            metrics = kind.of(self._model, self.measured, self.calls)
            if self.custom is not None:
                metrics = CustomStepMetrics.of(self._model, self.measured, self.calls)
                metrics.returned = None if self.custom.returns_metrics else self.custom.metrics
                metrics.outer = self.custom.outer
        elif self._mode is RunMode.PREDICT:
            _name_outputs(module, dict(zip(map(output_name, wanted), self.names, strict=True)))
        is_recorded = self._update is not None or self._updates is not None
        folders = (OPTIMIZER_FOLDER,) if is_recorded else ()
        first_values = self._model.values()
        return TracedModel(module, metrics, first_values=first_values, optimizer_folders=folders)

    @property
    def names(self) -> list[str]:
        """Return names of the outputs: those of their layers if they differ, else numbers."""
        model, count = self._model.keras, len(tree_leaves(self.outputs))
        is_sequential = isinstance(model, keras.Sequential)
        names = [model.layers[-1].name] if is_sequential else getattr(model, "output_names", [])
        is_usable = len({*names}) == count
        return names if is_usable else [f"output_{n}" for n in range(count)]


def _dtype(dtype: Any) -> torch.dtype:
    """Return the type of an array on the wafer; floats have that of the model."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return torch.float32
    return torch.from_numpy(np.empty(0, kind)).dtype


def _with_copies(outputs: Any) -> Any:
    """Return outputs with copies of a tensor that several of them are."""
    seen: set[int] = set()

    def separate(tensor: torch.Tensor) -> torch.Tensor:
        is_new = id(tensor) not in seen
        seen.add(id(tensor))
        return tensor if is_new else tensor.clone()

    return tree_map_only(torch.Tensor, separate, outputs)


def _refs(tree: Any) -> list[Ref]:
    return [leaf.value for leaf in tree_leaves(tree)]


def _with_names(recording: Recording, names: Sequence[str]) -> Recording:
    """Return the recording with the names of the data set's arrays."""
    own = {leaf.value: name for leaf, name in zip(recording.program_inputs, names, strict=True)}
    leaves = (replace(leaf, name=own.get(leaf.value, leaf.name)) for leaf in recording.leaves)
    return replace(recording, leaves=tuple(leaves))


def _name_outputs(module: ModuleOp, names: Mapping[str, str]) -> None:
    for op in module.ops:
        if isinstance(op, OutputOp):
            op.properties["symbol"] = StringAttr(names[op.symbol.data])
