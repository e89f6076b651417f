"""A part of a loop for a compile: recorded as one batch, and asked for in parts of that."""

from functools import partial

import msgspec

from csrun.base.errors import UsageError
from csrun.compiler import CompileOptions
from csrun.estimator.compilation import Tracing, compile_options
from csrun.estimator.config import CSRunConfig
from csrun.estimator.micro_batches import AUTO
from csrun.estimator.place import Target
from csrun.estimator.trace import share_of
from csrun.pytorch.capture import user_line
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.run.parts import Part


def tracing_of(
    part: Part, optimization: Optimization | None, config: CSRunConfig, systems: int
) -> Tracing:
    """A part of the loop in micro-batches of at most as many samples as were asked for.

    A batch of no more is one. Of a batch with fewer samples than the others of its loader, which
    they need not divide, it is the largest number that does.
    """
    share, asked = part.samples // systems, config.micro_batch_size
    if asked != AUTO and share <= asked:
        asked = max(share, 1)
    elif asked != AUTO and part.samples != part.batches.loader.loader.batch_size:
        asked = max(size for size in range(1, asked + 1) if share % size == 0)
    config = msgspec.structs.replace(config, micro_batch_size=asked)
    return Tracing(config, part.samples, partial(part.traced, optimization))


def options_of(tracing: Tracing, part: Part, target: Target) -> CompileOptions:
    """What a part of the loop is compiled with.

    Raises: UsageError, with the user's line, for a batch that cannot be cut into such parts
    """
    try:
        _require_shares(part, len(target.systems))
        return tracing.asked(compile_options(tracing.config, part.run_mode, target))
    except UsageError as error:
        raise UsageError(f"{user_line()}: {error}") from error


def _require_shares(part: Part, systems: int) -> None:
    """See that systems share each batch equally, that which ends a pass, and comes late, too."""
    share_of(part.samples, systems)
    loader = part.batches.loader
    last = loader.orders.rows(loader.orders.begun - 1, len(loader) - 1)
    if last is not None and last < part.samples and last % systems:
        raise UsageError(
            f"num_csx must divide each batch, got {systems}, and the last of a pass has {last} "
            "samples: give the DataLoader drop_last=True, or another batch_size"
        )
