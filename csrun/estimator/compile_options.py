"""Options of a compile from the configuration of a run."""

from typing import Literal

import msgspec

from csrun.base.errors import UsageError
from csrun.base.half_formats import BFLOAT16, HalfFormat
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import CSRunConfig
from csrun.base.sizes import bytes_in
from csrun.compiler import CompileOptions
from csrun.context import Rerun
from csrun.estimator.micro_batches import AUTO
from csrun.estimator.target import Target
from csrun.executable import RunMode, bfloat16, machine_code
from csrun.executable.bfloat16 import Products


def compile_options(config: CSRunConfig, run_mode: RunMode, target: Target) -> CompileOptions:
    """Return the options of a compile for the target, with one replica and float32 products.

    Raises: UsageError for a configuration that weight streaming does not support
    """
    if config.multireplica and target.mode is ExecutionMode.WEIGHT_STREAMING:
        raise UsageError(
            "runconfig.multireplica must be false in weight streaming, where each layer uses the "
            "whole wafer in turn: run the script with python on a PIPELINED system, or leave "
            "--multireplica out"
        )
    most = config.max_group_bytes
    return CompileOptions(
        mode=target.mode,
        run_mode=run_mode,
        system=target.system,
        max_group_bytes=None if most is None else bytes_in(most),
        minibatches_in_flight=minibatches_in_flight(config, target.mode),
        mark_layers=config.trace_layers and run_mode is RunMode.TRAIN,
        record_steps=config.record_steps if run_mode is RunMode.TRAIN else None,
        number_ranges=config.number_ranges if run_mode is RunMode.TRAIN else None,
        systems=len(target.systems),
        kernels=form_of_kernels(config),
    )


def recorded(config: CSRunConfig, again: Rerun | None) -> CSRunConfig:
    """Return the configuration with the steps that a second run records, and without a trace."""
    if again is None:
        return config
    others = {"trace_steps": None, "trace_layers": False, "number_ranges": None}
    return msgspec.structs.replace(config, record_steps=again.record_steps, **others)


def minibatches_in_flight(config: CSRunConfig, mode: ExecutionMode) -> int:
    """Return the number of minibatches in flight.

    The default is 1: more do not speed up this executor, and with 1 a pipelined run gives the same
    bits as weight streaming.

    Raises: UsageError for more than 1 in weight streaming
    """
    count = config.minibatches_in_flight or 1
    if count > 1 and mode is ExecutionMode.WEIGHT_STREAMING:
        raise UsageError(
            f"runconfig.minibatches_in_flight must be 1 in weight streaming, got {count}: run the "
            "script with python on a PIPELINED system, or leave it out"
        )
    return count


def form_of_kernels(config: CSRunConfig) -> Literal["numpy", "llvm"]:
    """Return the form of generated loops that this host can compile.

    Raises: UsageError for machine code without llvmlite
    """
    if config.kernels == "numpy" or (config.kernels == "auto" and not machine_code.is_supported()):
        return "numpy"
    if not machine_code.is_supported():
        raise UsageError(f"runconfig.kernels: llvm: {machine_code.missing()}; or set it to auto")
    return "llvm"


def form_of_products(config: CSRunConfig, kernels: str, storage: HalfFormat | None) -> Products:
    """Return the matrix products of a program whose kernels have this form, on this host.

    storage: the 16-bit format of the traced model, which a script's policy may have selected
    """
    if config.products == "blas":
        return "blas"
    is_bfloat16 = storage == BFLOAT16 and kernels == "llvm"
    fastest = bfloat16.fastest() if is_bfloat16 and config.products == "own" else None
    return fastest or "own"


def recomputes(config: CSRunConfig, options: CompileOptions) -> bool:
    """True if activations may be recomputed: in a training with streamed weights."""
    is_streamed = options.is_streaming
    return config.recompute == AUTO and is_streamed and options.run_mode is RunMode.TRAIN
