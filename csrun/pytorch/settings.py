"""Settings passed to `initialize`: system, model_dir and run options."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from csrun.base import typed_yaml
from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import CSRunConfig
from csrun.context import (
    Preparation,
    Role,
    TaskContext,
    current,
    interpreter_mode,
    preparation,
    rerun,
)
from csrun.estimator.compile_options import recorded
from csrun.pytorch.cuda_scalers import make_cuda_scalers_work
from csrun.pytorch.errors import user_line
from csrun.pytorch.record.reuse.autograd_graph import watch_node_hooks
from csrun.pytorch.torch_version import warn_of_untested
from csrun.records import log_lines

#: Fields of CSRunConfig that are arguments of `initialize`, follow from the script (initial
#: weights),
#: or are for minibatches in flight.
_OF_THE_SCRIPT = (
    "cs_ip",
    "warm_start",
    "multireplica",
    "minibatches_in_flight",
)
_OPTIONS = tuple(
    f.name for f in msgspec.structs.fields(CSRunConfig) if f.name not in _OF_THE_SCRIPT
)


@dataclass(frozen=True)
class Settings:
    """Settings of the script's runs.

    only: preparation instead of a run.
    fast: steps after the first ones need not be recorded.
    """

    model_dir: Path
    config: CSRunConfig
    only: Preparation | None = None
    fast: bool = True


@dataclass(frozen=True)
class Environment:
    """Environment of this task, for the script.

    weight_streaming_mode: MemoryX has the weights, as under python-ws.
    rank: of this task in the job; 0 without a job.
    is_chief: whether this task has the loop's values.
    """

    weight_streaming_mode: bool
    rank: int
    is_chief: bool


_given: list[Settings] = []


def initialize(
    cs_ip: str | None = None,
    model_dir: str | Path = "model_dir",
    *,
    compile_only: bool = False,
    validate_only: bool = False,
    fast: bool = True,
    **options: Any,
) -> None:
    """Configure the script's Sessions; call it first.

    cs_ip: CS system by name or address, as in csrun_wse.
    model_dir: folder of checkpoints, events and compiles; a run resumes from its newest checkpoint.
    compile_only, validate_only: end the script with exit code 0 once the first program of a Session
        is compiled, or its kernels are matched; no system is needed. These options in a launcher's
        command have the same effect.
    fast: False records each step. By default forward's Python only runs in the first steps, as long
        as nothing that it reads changes; the losses are bitwise equal.
    options: seed, log_steps, save_checkpoints_steps, save_initial_checkpoint, keep_checkpoint_max,
        check_numerics, threads, trace_steps, trace_layers, record_steps, max_group_bytes,
        micro_batch_size, recompute, num_csx, kernels, products, weight_store, weight_store_dir,
        weight_store_memory, num_wgt_servers, precision, cb16_exponent_bias and number_ranges, as in
        `runconfig` of a params file. float32 and float64 follow from the model, so precision is one
        of mixed_float16, mixed_bfloat16 and mixed_cbfloat16.

    Raises: UsageError for an unknown option or a value out of range
    """
    for name in options:
        if name not in _OPTIONS:
            known = sorted(("compile_only", "validate_only", "fast", *_OPTIONS))
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise UsageError(f"{user_line()}: initialize: unknown option {name}: {hint}")
    if not isinstance(fast, bool):
        raise UsageError(f"{user_line()}: initialize: fast must be True or False, got {fast!r}")
    given = {"cs_ip": cs_ip, **options}
    config = typed_yaml.convert(given, CSRunConfig, f"{user_line()}: initialize")
    if config.precision == "float64":
        raise UsageError(
            f"{user_line()}: initialize: precision float64 follows from the model: call "
            "model.double(), and leave it out"
        )
    if compile_only and validate_only:
        raise UsageError(
            f"{user_line()}: initialize: got both validate_only and compile_only: give one, "
            "validate_only stops after kernel matching"
        )
    asked = {Preparation.COMPILE_ONLY: compile_only, Preparation.VALIDATE_ONLY: validate_only}
    only = next((each for each, is_asked in asked.items() if is_asked), preparation())
    log_lines.configure()
    warn_of_untested()
    make_cuda_scalers_work()
    watch_node_hooks()
    again = rerun()
    folder = Path(model_dir if again is None else again.model_dir)
    _given[:] = [Settings(folder, recorded(config, again), only, fast)]


def choose_precision(name: str) -> None:
    """Set a 16-bit format, before any Session, if `initialize` has set none."""
    if _given and _given[0].config.precision == "float32":
        config = msgspec.structs.replace(_given[0].config, precision=name)
        _given[:] = [replace(_given[0], config=config)]


def settings(what: str) -> Settings:
    """Return the settings; `what` names the caller, for the error.

    Raises: UsageError if `initialize` was not called
    """
    if not _given:
        raise UsageError(
            f"{user_line()}: cbtorch.{what} needs cbtorch.initialize(cs_ip=...): call it first in "
            "the script"
        )
    return _given[0]


def env() -> Environment:
    """Return this task's environment."""
    context = current()
    mode = (context.mode if context else None) or interpreter_mode()
    return Environment(
        mode is ExecutionMode.WEIGHT_STREAMING, context.rank if context else 0, is_chief(context)
    )


def is_chief(context: TaskContext | None) -> bool:
    """True if the task is the job's chief, or runs without a job."""
    return context is None or context.mode is None or context.role is Role.CHIEF
