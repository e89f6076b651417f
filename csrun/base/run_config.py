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

    cs_ip: CS system, as host, host:port or name; None: the site's first one of the right mode.
    save_checkpoints_steps, log_steps: steps between two checkpoints, and between two log lines.
    save_initial_checkpoint: also save the initial weights of a training, at step 0.
    keep_checkpoint_max: maximum number of checkpoints in model_dir.
    num_csx: CS systems that share each batch, in weight streaming.
    minibatches_in_flight: number of equal parts of a batch that flow through the layers of a
        pipelined system at the same time; None: chosen by the compiler, which takes 1.
    micro_batch_size: samples of a batch that are computed at a time; `auto`: all, or the largest
        part whose activations fit the system.
    recompute: `auto`: in weight streaming, recompute activations that do not fit, if that is
        estimated to be faster than smaller micro-batches; `none`: never.
    multireplica: in a training, place as many replicas of the model as fit the wafer and are
        faster, each with a share of the batch; a job has one streamer for each.
    max_group_bytes: size above which a matrix is sharded, in bytes or as 8MiB; None: in weight
        streaming an eighth of the wafer's memory.
    trace_layers: trace layer by layer, with a program compiled with marks.
    record_steps: first and last global step in which the program of a training writes the value of
        each operator to the compile directory.
    num_wgt_servers: number of MemoryX tasks, in a job with a layout for as many.
    precision: float32; float64, for comparison with other programs; or a format in which weights,
        gradients and activations are stored in 16 bits, while arithmetic, master weights and the
        optimizer's state are float32.
    cb16_exponent_bias: exponent bias of mixed_cbfloat16.
    number_ranges: in mixed precision, steps between two reports on the ranges of weights,
        gradients and activations; with a scaled loss there is one whenever the scale halves, too.
    kernels: `numpy`; `llvm`: machine code, which needs llvmlite; `auto`: machine code if possible.
    products: matrix products of machine code. `own`: the same bits with any number of threads;
        bfloat16 is multiplied by AMX or AVX512-BF16 if the CPU has it. `float32`: without these.
        `blas`: those of NumPy's BLAS, whose last digits depend on the number of threads.
    warm_start: part of another training's weights, for a training that starts at step 0.
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
