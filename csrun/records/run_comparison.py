"""Comparison of two runs by the files in their model_dirs: parameters, identity, losses."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import Any

import msgspec

from csrun.base import plain_yaml
from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import find
from csrun.base.flat_values import Difference, differences, equal_values, flattened
from csrun.records import checkpoints
from csrun.records.model_dir import COMPILE_MANIFEST, newest_compile, require_folder
from csrun.records.scalar_events import EventTail, event_files

LOSS, CPU = "loss", "CPU"
PLACES = frozenset({"runconfig.model_dir", "runconfig.cs_ip"})  # of a run, which change no result
_MODES = ("train", "eval", "predict")


class LossDifference(msgspec.Struct, frozen=True):
    """Losses of two runs at one step; relative: divided by the larger one."""

    step: int
    first: float
    second: float
    relative: float


class LossComparison(msgspec.Struct, frozen=True):
    """Losses of the steps that both runs logged.

    common: number of these steps.
    last_common: the last of them.
    diverged: the first one whose bits differ.
    largest: the one with the largest relative difference.
    only_first, only_second: numbers of steps that only one run logged.
    """

    common: int
    differing: int
    diverged: LossDifference | None
    largest: LossDifference | None
    only_first: int
    only_second: int
    last_common: int = 0


class RunComparison(msgspec.Struct, frozen=True):
    """Differences of two runs; parameters by mode and key, for the modes of both runs.

    equal_parameters, equal_identity: values of both. only_first_modes, only_second_modes: modes
    that one of them alone was run in. without_checkpoint: runs that have none, or a damaged one,
    so that only the compile shows their identity.
    """

    parameters: tuple[Difference, ...]
    identity: tuple[Difference, ...]
    losses: LossComparison
    equal_parameters: dict[str, str] = {}
    equal_identity: dict[str, str] = {}
    only_first_modes: tuple[str, ...] = ()
    only_second_modes: tuple[str, ...] = ()
    without_checkpoint: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Return whether everything that both runs have is equal."""
        return not (self.parameters or self.identity or self.losses.differing)


class _CompileMachine(msgspec.Struct, frozen=True):
    target: str = ""


class _ManifestPart(msgspec.Struct, frozen=True):
    """Part of a compile's manifest.json; `csrun.executable` has all of it."""

    machine: _CompileMachine | None = None


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Compare the files of two runs.

    Raises: UsageError if a folder has no losses, or the runs logged no common step
    """
    losses = compare_losses(losses_of(first), losses_of(second))
    if not losses.common:
        raise UsageError(
            f"{first} and {second}: no step was logged by both ({losses.only_first} and"
            f" {losses.only_second} steps): train with equal runconfig.log_steps"
        )
    modes = _modes_of(first), _modes_of(second)
    both = [mode for mode in modes[0] if mode in modes[1]]
    parameters = parameters_of(first, both), parameters_of(second, both)
    saved = _saved_identity(first), _saved_identity(second)
    identity = _compiled_identity(first), _compiled_identity(second)
    if all(saved):  # of a run without a checkpoint it is unknown
        identity = saved[0] | identity[0], saved[1] | identity[1]
    if not all(CPU in each for each in identity):  # of machine code, which one of them has not
        for each in identity:
            each.pop(CPU, None)
    return RunComparison(
        tuple(differences(*parameters)),
        tuple(differences(*identity)),
        losses,
        equal_values(*parameters),
        equal_values(*identity),
        tuple(mode for mode in modes[0] if mode not in both),
        tuple(mode for mode in modes[1] if mode not in both),
        tuple(str(run) for run, of_run in zip((first, second), saved, strict=True) if not of_run),
    )


def losses_of(model_dir: Path) -> dict[int, float]:
    """Return the logged losses by step; of a step that ran twice, the later one.

    Raises: UsageError if there are none
    """
    require_folder(model_dir)
    found = {
        event.step: event.value
        for path in event_files(model_dir)
        for event in EventTail(path).read()
        if event.tag == LOSS
    }
    if not found:
        raise UsageError(f"{model_dir}: no losses; pass the model_dir of a training")
    return found


def compare_losses(first: Mapping[int, float], second: Mapping[int, float]) -> LossComparison:
    """Compare losses by step."""
    common = sorted(first.keys() & second.keys())
    found = [
        LossDifference(step, first[step], second[step], _relative(first[step], second[step]))
        for step in common
        if not _is_same(first[step], second[step])
    ]
    return LossComparison(
        len(common),
        len(found),
        found[0] if found else None,
        max(found, key=lambda each: each.relative) if found else None,
        len(first) - len(common),
        len(second) - len(common),
        common[-1] if common else 0,
    )


def _is_same(first: float, second: float) -> bool:
    return first == second or (isnan(first) and isnan(second))


def _relative(first: float, second: float) -> float:
    size = max(abs(first), abs(second))
    return abs(first - second) / size if size else 0.0


def _modes_of(model_dir: Path) -> list[str]:
    return [mode for mode in _MODES if _params_file(model_dir, mode).is_file()]


def _params_file(model_dir: Path, mode: str) -> Path:
    return model_dir / mode / f"params_{mode}.yaml"


def parameters_of(model_dir: Path, modes: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the parameters of the latest run in each mode, or in these, by mode and key; without
    paths.
    """
    found: dict[str, Any] = {}
    for mode in _modes_of(model_dir) if modes is None else modes:
        for key, value in flattened(plain_yaml.read(_params_file(model_dir, mode))).items():
            if key not in PLACES:
                found[f"{mode}: {key}"] = value
    return found


def identity_of(model_dir: Path) -> dict[str, str]:
    """Identity of the newest checkpoint (seed, versions, form of kernels), the newest
    compile of a training, and the CPU that it is for.
    """
    return _saved_identity(model_dir) | _compiled_identity(model_dir)


def _saved_identity(model_dir: Path) -> dict[str, str]:
    """The part in the newest checkpoint; empty without one, or if it is damaged."""
    with suppress(CsrunError):  # `csrun checkpoint verify` reports it
        newest = checkpoints.latest(model_dir)
        if newest is not None:
            return dict(newest.manifest.identity)
    return {}


def _compiled_identity(model_dir: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    if (compiled := newest_compile(model_dir)) is not None:
        with suppress(OSError, msgspec.MsgspecError):
            data = find(compiled / COMPILE_MANIFEST).data
            manifest = msgspec.json.decode(data, type=_ManifestPart)
            found["compile"] = compiled.name
            if manifest.machine is not None:
                found[CPU] = manifest.machine.target.partition(" ")[0]
    return found
