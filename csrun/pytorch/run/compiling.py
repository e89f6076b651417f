"""A part of a loop for a compile: recorded as one batch, and asked for in parts of that."""

from dataclasses import dataclass
from functools import partial

import msgspec

from csrun.base.errors import UsageError
from csrun.base.run_config import CSRunConfig
from csrun.compiler import CompileOptions
from csrun.estimator.compilation import Tracing, compile_fitting, compile_options
from csrun.estimator.micro_batches import AUTO
from csrun.estimator.place import Target
from csrun.estimator.progress import compile_display
from csrun.estimator.run import Run
from csrun.estimator.trace import share_of
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.step.variant import StepVariant
from csrun.pytorch.weights.sync import GivenBack
from csrun.records.checkpoints import Checkpoint


@dataclass
class Compiling:
    """Compiles the parts of a script's loops. accumulates: a training step may take several
    batches. trained: the first part that trains and was compiled. seconds: how long all of it took.
    """

    users: GivenBack
    target: Target
    accumulates: bool = False
    trained: StepVariant | None = None
    seconds: float = 0.0

    def accumulate(self) -> None:
        """What trains is to be compiled anew, for steps of several batches.

        Raises: UsageError on several systems, whose word on a loss is of a whole step
        """
        if len(self.target.systems) > 1:
            raise UsageError(
                f"{user_line()}: gradients are added up over batches on one CS system, got num_csx "
                f"{len(self.target.systems)}: set it to 1, or give the DataLoader a larger "
                "batch_size"
            )
        self.accumulates, self.trained = True, None

    def asked(self, run: Run, variant: StepVariant) -> tuple[Tracing, CompileOptions]:
        """A part for its compile, and what it is compiled with."""
        systems = len(self.target.systems)
        tracing = tracing_of(variant, self.users.optimization, run.config, systems)
        accumulates = self.accumulates and variant.trains
        return tracing, options_of(tracing, variant, self.target, accumulates)

    def compile(self, run: Run, variant: StepVariant, begins: Checkpoint | None) -> None:
        """Compile a part with the values that are asked of it.

        begins: a checkpoint which the run is to begin with, if the part trains
        """
        tracing, options = self.asked(run, variant)
        traced = tracing.trace(options)
        if begins is not None and variant.trains:
            begins.require_same(traced.weights())
        with compile_display(run.context) as begin:
            compiled = compile_fitting(tracing, traced, run.model_dir, options, begin)
        self.seconds += compiled.seconds
        variant.executable = compiled.executable
        if variant not in variant.batches.variants:
            variant.batches.variants.append(variant)
        if variant.trains:
            self.users.learn(variant.recording)
            self.trained = self.trained or variant

    def is_current(self, variant: StepVariant) -> bool:
        """Whether a part is compiled, for steps of as many batches as they may have now."""
        found = variant.executable
        return found is not None and found.plan.accumulates == (self.accumulates and variant.trains)


def tracing_of(
    variant: StepVariant, optimization: Optimization | None, config: CSRunConfig, systems: int
) -> Tracing:
    """A part of the loop in micro-batches of at most as many samples as were asked for.

    A batch of no more is one. Of a batch which they need not divide, one of an evaluation or with
    fewer samples than the others of its loader, it is the largest number that does.
    """
    share, asked = variant.samples // systems, config.micro_batch_size
    loader = variant.batches.loader.loader
    if asked != AUTO and share <= asked:
        asked = max(share, 1)
    elif asked != AUTO and not (variant.trains and variant.samples == loader.batch_size):
        asked = max(size for size in range(1, asked + 1) if share % size == 0)
    config = msgspec.structs.replace(config, micro_batch_size=asked)
    return Tracing(config, variant.samples, partial(variant.traced, optimization))


def options_of(
    tracing: Tracing, variant: StepVariant, target: Target, accumulates: bool = False
) -> CompileOptions:
    """What a part of the loop is compiled with. accumulates: its steps may take several batches.

    Raises: UsageError, with the user's line, for a batch that cannot be cut into such parts
    """
    try:
        _require_shares(variant, len(target.systems))
        options = compile_options(tracing.config, variant.run_mode, target)
        return tracing.asked(msgspec.structs.replace(options, accumulates=accumulates))
    except UsageError as error:
        raise UsageError(f"{user_line()}: {error}") from error


def _require_shares(variant: StepVariant, systems: int) -> None:
    """See that systems share each batch equally, that which ends a pass, and comes late, too."""
    share_of(variant.samples, systems)
    loader = variant.batches.loader
    last = loader.orders.rows(loader.orders.begun - 1, len(loader) - 1)
    if last is not None and last < variant.samples and last % systems:
        raise UsageError(
            f"num_csx must divide each batch, got {systems}, and the last of a pass has {last} "
            "samples: give the DataLoader drop_last=True, or another batch_size"
        )
