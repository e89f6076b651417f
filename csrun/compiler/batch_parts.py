"""Splitting of a batch into micro-batches and systems: the module of one part, and refusals."""

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from csrun.cirh.batch_axes import BatchRelation
from csrun.cirh.ops.batch_norm import NativeBatchNormOp
from csrun.compiler.errors import CompileError, refused, short_name
from csrun.compiler.matching import MatchedModel
from csrun.compiler.options import CompileOptions
from csrun.compiler.passes import PassObserver, Verification, run_passes
from csrun.compiler.passes.rebatching import Rebatching
from csrun.compiler.passes.rewrite import Canonicalization, ConstantFolding, DeadCodeElimination


def rebatch(module: ModuleOp, options: CompileOptions, samples: int) -> None:
    """Rewrite a module of a full batch, including its backward pass, for one of the options' parts.

    samples: batch size, of which all parts have an equal share.

    Raises: CompileError for an operation on the batch as a whole
    """
    if options.parts == 1:
        return
    assert samples % options.parts == 0, "checked by the caller"
    part = Rebatching(samples // options.parts, in_parts(options))
    passes = (
        Canonicalization(),
        ConstantFolding(),
        DeadCodeElimination(),
        part,
        DeadCodeElimination(),
    )
    run_passes(module, passes, PassObserver(verify=Verification.NONE))
    # Once, after all passes: after each of them it would take as long as they do.
    module.verify()


def check_dependence(model: MatchedModel, options: CompileOptions) -> None:
    """Raises: CompileError for a value that cannot be computed from minibatches"""
    if options.parts == 1:
        return
    if mixed := _mixed_values(model):
        raise _refused_for(
            model.mixing,
            f"{mixed[0]} must be per sample or a sum over samples to run " + in_parts(options),
        )


def unsplittable_reason(model: MatchedModel) -> str | None:
    """Return why a model cannot be computed from minibatches, or None."""
    mixed = _mixed_values(model)
    if mixed and model.mixing is not None:
        return _mixes_text(model.mixing)
    return f"{mixed[0]} is neither per sample nor a sum over samples" if mixed else None


def _mixed_values(model: MatchedModel) -> list[str]:
    """Return the values that cannot be computed from minibatches, by name."""
    mixed = [
        f"output {output.name}"
        for output in model.outputs
        if output.dependence.over is BatchRelation.MIXED
    ]
    if model.loss_dependence is not None and model.loss_dependence.over is not BatchRelation.PART:
        mixed.insert(0, "the loss")
    states = model.states.items()
    return mixed + [f"state {name}" for name, of in states if of.over is not BatchRelation.PART]


def in_parts(options: CompileOptions) -> str:
    """Return how a batch is to be computed, and the configuration option that causes the split."""
    if options.systems > 1:
        return f"on {options.systems} systems: set num_csx to 1"
    if options.at_once == 1:
        return (
            f"in {options.micro_batches} micro-batches: remove micro_batch_size, or lower "
            "batch_size"
        )
    return (
        f"in {options.minibatches} minibatches: set minibatches_in_flight to 1 and multireplica "
        "to false"
    )


def _refused_for(mixing: Operation | None, message: str) -> CompileError:
    """Add the user's line and the layer to the message, if known."""
    if mixing is None:
        return CompileError(message)
    message += f" ({_mixes_text(mixing)})"
    if isinstance(mixing, NativeBatchNormOp):
        message += "; nn.BatchNorm(by_minibatch=True) keeps statistics per minibatch"
    return refused(mixing, message)


def _mixes_text(mixing: Operation) -> str:
    """Name the operation that mixes the samples of a batch, and its layer."""
    scope = mixing.properties.get("scope")
    layer = scope.data if isinstance(scope, StringAttr) else "model"
    return f"layer {layer}: {short_name(mixing)} mixes the samples of a batch"
