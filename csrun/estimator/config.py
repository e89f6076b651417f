"""What the estimator is configured with, and what a model function returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from csrun.base.callers import user_line
from csrun.base.errors import UsageError
from csrun.base.typed_yaml import NOT_THERE_YET
from csrun.executable import RunMode
from csrun.nn import Optimizer, Tensor, TrainOp
from csrun.runtime.wire.messages import RunSettings, Size

NO_HALF_PRECISION = "half precision is not there yet; leave precision out to train in float32"
HALF_PRECISIONS = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "cbfloat16")
Precision = Annotated[
    Literal["float32", "float64"],
    msgspec.Meta(extra={NOT_THERE_YET: dict.fromkeys(HALF_PRECISIONS, NO_HALF_PRECISION)}),
]
Positive = Annotated[int, msgspec.Meta(ge=1)]

HostFunction = Callable[..., Mapping[str, Any]]


class WarmStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a new training takes some of its first weights from.

    tensors: regular expressions; every parameter in whose name one is found is taken, all of them
    when none is given. The optimizer's state starts from zero, and the steps are counted from 0.
    """

    checkpoint_path: str
    tensors: tuple[str, ...] = ("",)


class CSRunConfig(RunSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the estimator runs; the `runconfig` section of a params file.

    cs_ip: the CS system, as host, host:port or name; None takes the site's first in the right mode.
    seed: keys initial weights and every random draw; equal seeds give equal bits.
    save_checkpoints_steps: steps between two checkpoints; log_steps: between two log lines.
    save_initial_checkpoint: save the weights that a training begins with, at step 0, too.
    keep_checkpoint_max: how many checkpoints stay in model_dir.
    num_csx: CS systems that share each batch, in weight streaming.
    minibatches_in_flight: equal parts that a batch flows through the layers in, when they are all
    on the wafer; None leaves it to the compiler, which takes 1.
    micro_batch_size: samples of a batch that are computed at a time, one part after the other;
    `auto`: all of them, or the largest part whose activations fit the system.
    recompute: `auto`: in weight streaming, have activations that do not fit made again before the
    backward pass, where that is estimated to be faster than smaller micro-batches; `none`: never.
    multireplica: place as many replicas of a model as fit the wafer and pay, each with a share of
    the batch; a step is that of the whole batch.
    max_group_bytes: a larger matrix of weights comes to the wafer in parts, as bytes or 8MiB; None
    cuts, in weight streaming, what takes more than an eighth of the wafer's memory.
    warm_start: part of another training's weights, for a training that starts at step 0.
    check_numerics: refuse a batch in which a value is NaN or Inf, before a step computes with it.
    weight_store, weight_store_dir, weight_store_memory: where weight streaming has the weights, in
    memory or on disk, and how much memory a store on disk takes.
    trace_layers: the steps that are traced are traced layer by layer, by a program that says so.
    num_wgt_servers: MemoryX tasks that share them, of a job that was laid out for as many.
    precision: arithmetic of the whole run; float64 is for checking against other programs.
    """

    cs_ip: str | None = None
    save_checkpoints_steps: Positive = 1000
    save_initial_checkpoint: bool = True
    keep_checkpoint_max: Positive = 5
    log_steps: Positive = 100
    num_csx: Positive = 1
    minibatches_in_flight: Positive | None = None
    micro_batch_size: Literal["auto"] | Positive = "auto"
    recompute: Literal["none", "auto"] = "auto"
    multireplica: bool = False
    max_group_bytes: Size | None = None
    trace_layers: bool = False
    num_wgt_servers: Positive | None = None
    precision: Precision = "float32"
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        if self.trace_steps is not None and self.trace_steps[0] > self.trace_steps[1]:
            first, last = self.trace_steps
            raise UsageError(
                f"runconfig.trace_steps: the first step must not come after the last, got "
                f"[{first}, {last}]"
            )
        if self.trace_layers and self.trace_steps is None:
            raise UsageError("runconfig.trace_layers: say which steps, with runconfig.trace_steps")
        if self.precision in HALF_PRECISIONS:  # from Python: a file never gets here
            raise UsageError(
                f"precision must be float32, got {self.precision}: {NO_HALF_PRECISION}"
            )


@dataclass(frozen=True)
class CSEstimatorSpec:
    """What model_fn returns.

    mode: RunMode. loss: the scalar to minimise or to report; train_op: what `minimize` gave, for
    training. predictions: what `predict` gives of each sample, by name. host_call: (function,
    traced tensors): the function gets their values of each step as NumPy arrays, valid rows only,
    and returns metrics by name.
    """

    mode: RunMode
    loss: Tensor | None = None
    train_op: TrainOp | None = None
    host_call: tuple[HostFunction, Sequence[Tensor]] | None = None
    predictions: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        """Raises: UsageError, with the model's line, for what is of another type."""
        wrong = next(filter(None, (self._wrong_train_op(), self._wrong_tensors())), None)
        if wrong:
            raise UsageError(f"{user_line()}: CSEstimatorSpec: {wrong}")

    def _wrong_train_op(self) -> str | None:
        if self.train_op is None or isinstance(self.train_op, TrainOp):
            return None
        got, hint = type(self.train_op).__name__, "optimizer.minimize(loss)"
        if isinstance(self.train_op, Optimizer):
            hint = f"nn.{got}(...).minimize(loss)"
        return f"train_op must be what minimize returns, got {got}: write train_op={hint}"

    def _wrong_tensors(self) -> str | None:
        if self.loss is not None and not isinstance(self.loss, Tensor):
            return f"loss must be a tensor of the model, got {self.loss!r}"
        if self.predictions is not None and not (
            isinstance(self.predictions, Mapping)
            and all(isinstance(one, Tensor) for one in self.predictions.values())
        ):
            return (
                "predictions must be tensors by name, as {'class': nn.argmax(logits)}, "
                f"got {self.predictions!r}"
            )
        call = self.host_call
        if call is None:
            return None
        is_pair = isinstance(call, tuple | list) and len(call) == 2 and callable(call[0])
        if not is_pair or not all(isinstance(one, Tensor) for one in call[1]):
            return (
                "host_call must be a function and a list of tensors, as "
                f"(metrics, [nn.argmax(logits), labels]), got {call!r}"
            )
        return None
