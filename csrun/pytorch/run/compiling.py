"""Compilation of step variants, in micro-batches."""

from dataclasses import dataclass, replace
from functools import partial

import msgspec

from csrun.base.errors import UsageError
from csrun.base.half_formats import storage_format
from csrun.base.run_config import CSRunConfig
from csrun.compiler import CompileOptions
from csrun.context import rerun
from csrun.estimator.compilation import Tracing, compile_fitting
from csrun.estimator.compile_options import compile_options
from csrun.estimator.micro_batches import AUTO
from csrun.estimator.model_trace import share_of
from csrun.estimator.progress import compile_display
from csrun.estimator.run import EstimatorRun
from csrun.estimator.target import Target
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers.optimization import Form
from csrun.pytorch.run.torch_reference import TorchReference
from csrun.pytorch.step.variant import StepVariant
from csrun.pytorch.weights.sync import WeightSync
from csrun.records.checkpoints import Checkpoint


@dataclass
class Compiling:
    """Compiler of the variants of a script's loops.

    accumulates: a training step may take several batches. trained: the first compiled training
    variant. layers: those of compiled trainings, in their order in the store. window_bytes: the
    most that a compiled training needs for its gradients in the store. seconds: of all compiles.
    """

    users: WeightSync
    target: Target
    accumulates: bool = False
    trained: StepVariant | None = None
    layers: tuple[str, ...] = ()
    window_bytes: int = 0
    seconds: float = 0.0
    _largest: StepVariant | None = None  # compiled training with the most buffers

    def accumulate(self) -> None:
        """From now on, compile training variants for several batches per step.

        Raises: UsageError on several systems, each of which has a share of the batch
        """
        if len(self.target.systems) > 1:
            raise UsageError(
                f"{user_line()}: gradient accumulation needs one CS system, got num_csx "
                f"{len(self.target.systems)}: set it to 1, or give the DataLoader a larger "
                "batch_size"
            )
        self.accumulates, self.trained, self.layers, self.window_bytes = True, None, (), 0
        self._largest = None

    def configured(self, run: EstimatorRun, variant: StepVariant) -> tuple[Tracing, CompileOptions]:
        """Return the tracing and the compile options of a variant."""
        systems = len(self.target.systems)
        tracing = tracing_of(variant, self.users, run.config, systems)
        accumulates = self.accumulates and variant.trains
        options = options_of(tracing, variant, self.target, accumulates)
        stored = self.layers if variant.trains else ()
        return tracing, msgspec.structs.replace(options, stored_layers=stored)

    def compile(self, run: EstimatorRun, variant: StepVariant, begins: Checkpoint | None) -> None:
        """Compile a variant with the outputs that it must return.

        begins: initial checkpoint of the run, for a comparison of the weights.
        """
        tracing, options = self.configured(run, variant)
        # the loop's first program describes all: other counts and lengths differ by their sizes
        is_described = not variant.is_one_of_many or self.trained is None
        tracing = replace(tracing, describes=is_described)
        traced = tracing.trace(options)
        if begins is not None and variant.trains:
            begins.require_same(traced.weights())
        with compile_display(run.context) as begin:
            compiled = compile_fitting(tracing, traced, run.model_dir, options, begin)
        self.seconds += compiled.seconds
        variant.executable, variant.form = compiled.executable, self._form(variant)
        if variant not in variant.batches.variants:
            variant.batches.variants.append(variant)
        again = rerun()
        if variant.trains and again is not None and again.against_torch:
            TorchReference(
                variant.recording,
                compiled.executable,
                self.users.optimization,
                variant.form,
                run.config.seed,
            ).start()
        if variant.trains:
            self.users.note_trained(variant.recording, is_one_of_many=variant.is_one_of_many)
            self.trained = self.trained or variant
            if self._largest is None or self._largest.stored < variant.stored:
                self._largest = variant
            made = (layer.name for layer in compiled.executable.plan.layers)
            self.layers = tuple(dict.fromkeys((*self.layers, *made)))
            self.window_bytes = max(self.window_bytes, variant.window_bytes)

    def with_largest_store(self, variant: StepVariant) -> StepVariant:
        """Return the training variant that has the buffers of this one and the most others, such
        as optimizer state that a later step has created; this one if there is none.
        """
        largest = self._largest
        if largest is None or not self.is_current(largest) or not variant.trains:
            return variant
        has_more = variant.stored < largest.stored and largest.has_store_of(variant)
        return largest if has_more and largest.rows == variant.rows else variant

    def _form(self, variant: StepVariant) -> Form:
        """Return the current form of a variant's updates."""
        optimization = self.users.optimization
        if optimization is None or not variant.trains:
            return ()
        return optimization.form(variant.updates)

    def is_current(self, variant: StepVariant) -> bool:
        """True if a variant is compiled for the current number of batches per step, and for the
        current groups and update counts of the optimizer.
        """
        found = variant.executable
        accumulates = self.accumulates and variant.trains
        is_compiled = found is not None and found.plan.accumulates == accumulates
        return is_compiled and variant.form == self._form(variant)


def tracing_of(
    variant: StepVariant, users: WeightSync, config: CSRunConfig, systems: int
) -> Tracing:
    """Return the tracing of a variant for the requested micro-batch size.

    A smaller batch is one micro-batch. If the size need not divide the batch (in an evaluation, or
    for the shorter last batch of a pass), the largest smaller size that does is used.
    """
    share, asked = variant.samples // systems, config.micro_batch_size
    loader = variant.batches.loader.loader
    if asked != AUTO and share <= asked:
        asked = max(share, 1)
    elif asked != AUTO and not (variant.trains and variant.samples == loader.batch_size):
        asked = max(size for size in range(1, asked + 1) if share % size == 0)
    config = msgspec.structs.replace(config, micro_batch_size=asked)
    storage = storage_format(config.precision, config.cb16_exponent_bias)
    trace = partial(variant.traced, users.optimization, storage=storage)
    if storage is None:
        trace = partial(trace, store_type=users.store_type)
    return Tracing(config, variant.samples, trace)


def options_of(
    tracing: Tracing, variant: StepVariant, target: Target, accumulates: bool = False
) -> CompileOptions:
    """Return the compile options of a variant.

    accumulates: its steps may have several batches.

    Raises: UsageError, with the user's line, for a batch that cannot be split in this way
    """
    try:
        _require_shares(variant, len(target.systems))
        options = compile_options(tracing.config, variant.run_mode, target)
        return tracing.configured(msgspec.structs.replace(options, accumulates=accumulates))
    except UsageError as error:
        raise UsageError(f"{user_line()}: {error}") from error


def _require_shares(variant: StepVariant, systems: int) -> None:
    """Raises: UsageError if systems cannot share each batch equally, including the last one of a
    pass
    """
    share_of(variant.samples, systems)
    loader = variant.batches.loader
    last = loader.orders.rows(loader.orders.begun - 1, loader.length - 1)
    if last is not None and last < variant.samples and last % systems:
        raise UsageError(
            f"num_csx must divide each batch, got {systems}, and the last batch of a pass has "
            f"{last} samples: give the DataLoader drop_last=True, or another batch_size"
        )
