"""The section `runconfig` of a params file: configuration of a run.

The launcher checks this section before it queues a job, without importing the estimator.
"""

from typing import Annotated, Literal

import msgspec

from csrun.base.errors import UsageError
from csrun.base.precision_names import CB16_EXPONENT_BIAS, MIXED, MOST_CB16_BIAS
from csrun.base.sizes import BYTES_WORDS, SIZE_PATTERN, SIZE_WORDS
from csrun.base.typed_yaml import NOT_THERE_YET, WORDS

MOST = 2**63 - 1  # largest number that a message can hold
_StepNumber = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
TraceSteps = tuple[_StepNumber, _StepNumber]


Size = (
    Annotated[int, msgspec.Meta(ge=1, le=MOST, extra={WORDS: BYTES_WORDS})]
    | Annotated[str, msgspec.Meta(pattern=SIZE_PATTERN, extra={WORDS: SIZE_WORDS})]
)
NO_HALF_ARITHMETIC = "arithmetic is float32; store 16 bits by mixed_"
HALF_PRECISIONS = ("float16", "bfloat16", "cbfloat16")
_NOT_THERE = {name: f"{NO_HALF_ARITHMETIC}{name}" for name in HALF_PRECISIONS}
Precision = Annotated[
    Literal["float32", "float64", "mixed_float16", "mixed_bfloat16", "mixed_cbfloat16"],
    msgspec.Meta(extra={NOT_THERE_YET: _NOT_THERE}),
]
ExponentBias = Annotated[int, msgspec.Meta(ge=1, le=MOST_CB16_BIAS)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class RunSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The part of `runconfig` that every task of a run needs; the chief sends it to the others.

    seed: seed of the initial weights and of all random draws. Equal seeds give bitwise equal
        results.
    check_numerics: refuse a batch with NaN or Inf before a step computes with it.
    weight_store: location of MemoryX's store in weight streaming. None selects memory if the store
        fits, else disk.
    weight_store_dir: folder of a store on disk; None selects the folder for temporary files.
    weight_store_memory: limit of the memory that a store on disk uses, in bytes or as text such as
        8GiB; None selects half of the free memory.
    trace_steps: first and last global step whose times are written to the folder `trace` of
        model_dir.
    threads: maximum number of threads that compute a step; None allows one per CPU of the wafer's
        task.
    """

    seed: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 1
    check_numerics: bool = False
    weight_store: Literal["memory", "disk"] | None = None
    weight_store_dir: str | None = None
    weight_store_memory: Size | None = None
    trace_steps: TraceSteps | None = None
    threads: Positive | None = None


class WarmStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Initial weights of a new training, read from the checkpoint of another training.

    The optimizer state starts from zero, and steps are counted from 0.

    checkpoint_path: checkpoint to read.
    tensors: regular expressions. A parameter is read if one of them matches anywhere in its name;
        the default matches all parameters.
    """

    checkpoint_path: str
    tensors: tuple[str, ...] = ("",)


class CSRunConfig(RunSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration of the estimator; the `runconfig` section of a params file.

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
    multireplica: place as many replicas of a model as fit the wafer and pay in a training, each
    with a share of the batch; a step is that of the whole batch. A job has a streamer for each.
    max_group_bytes: a larger matrix of weights comes to the wafer in parts, as bytes or 8MiB; None
    cuts, in weight streaming, what takes more than an eighth of the wafer's memory.
    warm_start: part of another training's weights, for a training that starts at step 0.
    check_numerics: refuse a batch in which a value is NaN or Inf, before a step computes with it.
    weight_store, weight_store_dir, weight_store_memory: where weight streaming has the weights, in
    memory or on disk, and how much memory a store on disk takes.
    threads: the most that compute a step on the wafer, None for every CPU of its task; a step of
    less than 0.1 GFLOP takes one. Of products that BLAS computes another number of threads changes
    the last bits.
    trace_layers: the steps that are traced are traced layer by layer, by a program that says so.
    record_steps: the first and the last global step of a training in which its program writes each
    operator's value to the compile directory.
    num_wgt_servers: MemoryX tasks that share them, of a job that was laid out for as many.
    precision: float32 or float64, for checking against other programs, is arithmetic of the whole
    run. With mixed_float16, mixed_bfloat16 or mixed_cbfloat16 weights, gradients and activations
    are stored in 16 bits; arithmetic, master weights and the optimizer's state are float32.
    cb16_exponent_bias: of mixed_cbfloat16. number_ranges: in mixed precision, steps between two
    reports on the ranges of weights, gradients and activations; with a scaled loss also where the
    scale halves.
    kernels: `numpy`, or `llvm`, machine code, which needs llvmlite; `auto`: machine code where the
    host can run it. products: of machine code; `own` has the same bits with any number of threads,
    and multiplies bfloat16 by AMX or AVX512-BF16 where the CPU has it, `float32` never; `blas`
    leaves matrix products to NumPy's BLAS.
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
    record_steps: TraceSteps | None = None
    num_wgt_servers: Positive | None = None
    precision: Precision = "float32"
    cb16_exponent_bias: ExponentBias = CB16_EXPONENT_BIAS
    number_ranges: Positive | None = None
    kernels: Literal["auto", "numpy", "llvm"] = "auto"
    products: Literal["own", "float32", "blas"] = "own"
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        if self.trace_steps is not None and self.trace_steps[0] > self.trace_steps[1]:
            first, last = self.trace_steps
            raise UsageError(
                f"runconfig.trace_steps: the first step must not come after the last, got "
                f"[{first}, {last}]"
            )
        if self.record_steps is not None and self.record_steps[0] > self.record_steps[1]:
            first, last = self.record_steps
            raise UsageError(
                f"runconfig.record_steps: the first step must not come after the last, got "
                f"[{first}, {last}]"
            )
        if self.trace_layers and self.trace_steps is None:
            raise UsageError("runconfig.trace_layers: set runconfig.trace_steps, too")
        # only from Python: the reader of a file has refused it
        if self.precision in HALF_PRECISIONS:
            raise UsageError(
                f"precision must be float32, got {self.precision}: {_NOT_THERE[self.precision]}"
            )

    @property
    def arithmetic(self) -> str:
        """Type that operators compute in."""
        return "float32" if self.precision.startswith(MIXED) else self.precision


class RunConfig(CSRunConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration of the estimator, including the length of the run.

    At most one of max_steps and steps is set.

    model_dir: folder of checkpoints, log files and compiles.
    max_steps: global step at which the training ends, including the steps of earlier runs.
    steps: number of steps to train from the newest checkpoint in model_dir.
    eval_steps: number of batches to evaluate; None evaluates the whole data set.
    checkpoint_path: checkpoint to start from; None selects the newest one in model_dir.
    """

    model_dir: str = "model_dir"
    max_steps: Positive | None = None
    steps: Positive | None = None
    eval_steps: Positive | None = None
    checkpoint_path: str | None = None


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Params file of a script that defines no keys besides `runconfig`."""

    runconfig: RunConfig = RunConfig()
