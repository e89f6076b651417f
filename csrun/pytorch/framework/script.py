"""Settings, objects and counters of a script, as registered by `initialize`, `module` and
others.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.base.open_config import OpenConfig
from csrun.base.precision_names import CB16, MIXED
from csrun.context import current
from csrun.pytorch import settings, user
from csrun.pytorch.errors import user_line
from csrun.pytorch.framework.rates import RateTracker
from csrun.pytorch.framework.xla_stub import install
from csrun.pytorch.loop.late_calls import late_calls
from csrun.pytorch.settings import is_chief
from csrun.records import log_lines

log = logging.getLogger("csrun")

#: csrun's own files only serve resumption; the script saves and logs at its own steps.
_NEVER = 2**62
_DEFAULT_PORT = ":9000"
_RUNS = "csrun"  # in the script's folder, with a subfolder for each run


@dataclass
class State:
    """State of the script, which it may read and write.

    full_config: settings of the original's compiler.
    is_inside_execution_loop: within a step of a loader.
    run_step: number of `optimizer.step()` calls in this run.
    """

    full_config: OpenConfig = field(default_factory=OpenConfig)
    rate_tracker: RateTracker | None = None
    is_inside_execution_loop: bool = False
    mixed_precision: bool = False
    metrics: list[Any] = field(default_factory=list)
    modules: list[torch.nn.Module] = field(default_factory=list)
    tracked: list[Any] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None
    run_step: int = 0

    def register_metric(self, metric: Any) -> None:
        """Register a metric of the script, which updates itself in step closures."""
        self.metrics.append(metric)

    def track_object(self, tracked: Any) -> None:
        """Register values of a step that must be computed."""
        self.tracked.append(tracked)

    @property
    def model(self) -> torch.nn.Module | None:
        """The script's model, if one is registered."""
        return self.modules[-1] if self.modules else None


@dataclass(frozen=True)
class ScriptEnvironment:
    """Environment of the script.

    weight_streaming_mode: False under python-ws, too, as all modes read metrics in the host and get
    the learning rate with each step. service_workdir: the folder of its files.
    """

    weight_streaming_mode: bool = False
    appliance: bool = False
    service_workdir: str = ""


def end_step() -> None:
    """Make the deferred calls of the step, in order."""
    try:
        late_calls.run()
    finally:
        script.state.is_inside_execution_loop = False


class _Script:
    """The script of this process. workdir: empty before `initialize`. cb16: its 16-bit format."""

    def __init__(self) -> None:
        self.state, self.workdir = State(), ""
        self.is_begun = self.compiles_only = self.cb16 = False

    def mix_precision(self) -> None:
        """Use a 16-bit format, as requested by the script's params file."""
        settings.choose_precision(f"{MIXED}{CB16 if self.cb16 else 'float16'}")

    def require_format_in_use(self) -> None:
        """Raises: UsageError if the params file sets the format for a run in mixed precision"""
        if self.cb16 and not settings.settings("Session").config.precision.startswith(MIXED):
            raise UsageError(
                "use_cbfloat16=True can only be used in mixed precision mode. Set mixed_precision "
                "to True."
            )


script = _Script()


def initialize(
    service_workdir: str | Path = "model_dir",
    compile_dir: str | Path | None = None,
    cs_ip: str | None = None,
    compile_only: bool = False,
    appliance: bool = False,
    use_cbfloat16: bool = False,
    **options: Any,
) -> None:
    """Configure the script's runs.

    service_workdir: the folder of the script's files. Each run has a folder of its own below it, as
    the script resumes from a checkpoint of its own only. compile_dir has no effect: csrun has a
    cache of all compiles.

    use_cbfloat16: the 16-bit format of mixed precision is CB16, else float16.

    Raises: UsageError for appliance mode
    """
    if appliance:
        raise UsageError(
            f"{user_line()}: appliance mode is not supported: leave --appliance out and start the "
            "script by csrun_wse with python-pt or python-ws"
        )
    folder = _new_folder(Path(service_workdir) / _RUNS)
    defaults = {
        "log_steps": _NEVER,
        "save_checkpoints_steps": _NEVER,
        "save_initial_checkpoint": False,
        "keep_checkpoint_max": 1,
    }
    cs_ip = cs_ip and cs_ip.removesuffix(_DEFAULT_PORT)  # which a script also adds to a name
    settings.initialize(cs_ip, folder, compile_only=compile_only, **{**defaults, **options})
    script.state, script.workdir = State(), str(service_workdir)
    install()
    script.cb16 = use_cbfloat16
    script.is_begun, script.compiles_only = True, compile_only
    if is_chief(current()):
        log.info(log_lines.own_files(folder))


def _new_folder(runs: Path) -> Path:
    """Return the next folder of a run, starting with `run_1`."""
    found = [path.name.removeprefix("run_") for path in runs.glob("run_*")]
    return runs / f"run_{1 + max((int(name) for name in found if name.isdigit()), default=0)}"


def state() -> State:
    """Return the script's state."""
    return script.state


def env() -> ScriptEnvironment:
    """Return the script's environment."""
    return ScriptEnvironment(service_workdir=script.workdir)


def module(model: torch.nn.Module, device: Any = None) -> torch.nn.Module:
    """Register the script's model and return it. device: has no effect."""
    script.state.modules.append(user.module(model))
    return model
