"""Start of a training: initial weights, a warm start, or a checkpoint to resume from."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from csrun.base.errors import UsageError
from csrun.base.run_config import WarmStart
from csrun.data import Dataset
from csrun.data.ops.shuffle import ORDER
from csrun.data.sharding import Sharding, shard_info
from csrun.estimator.layout_advice import LayoutAdvice
from csrun.estimator.run import EstimatorRun
from csrun.estimator.target import Target
from csrun.executable import Plan, tensors_of
from csrun.executable.loss_scale import ScaleState
from csrun.records import log_lines
from csrun.records.checkpoints import Checkpoint, open_checkpoint
from csrun.runtime.chief.machine import Machine
from csrun.runtime.step.scale_rows import scale_of

log = logging.getLogger("csrun")

REMEDY = {
    Sharding.FILE: "leave shard_files out of input_fn",
    Sharding.USER: "leave shard out of input_fn",
}


def load_weights(
    run: EstimatorRun,
    machine: Machine,
    found: Checkpoint | None,
    warm: "WarmTensors | None",
    first: Mapping[str, Any],
    changed: Mapping[str, Any] | None = None,
) -> ScaleState | None:
    """Load a machine's state from the checkpoint, or initialize it and apply the warm start.

    Returns the loss scale, if the checkpoint has it. first: initial values of tensors that are not
    drawn. changed: values that replace those of the checkpoint.
    """
    started = perf_counter()
    if found is not None:
        log.info(log_lines.restoring(found.path))
        if found.manifest.is_converted:
            _load_converted(machine, found, first)
            return None
        _warn_of_changes(found, run.identity(machine.plan))
        found.restore(machine.state)
        _assign(machine, changed or {})
        log.info(log_lines.weights_loaded(perf_counter() - started))
        return scale_in(found, machine.plan)
    _initialize(machine, first)
    log.info(log_lines.weights_initialized(perf_counter() - started))
    if warm is not None:
        count = warm.take(machine.state)
        log.info(f"Warm start: {count} tensors from {warm.checkpoint.path}")
    return None


def scale_in(found: Checkpoint, plan: Plan) -> ScaleState | None:
    """Return the loss scale of a checkpoint, for a plan with loss scaling."""
    return None if plan.loss_scaling is None else scale_of(found)


def _initialize(machine: Machine, first: Mapping[str, Any]) -> None:
    """Draw initial values, and set the given ones."""
    machine.initialize()
    _assign(machine, first)


def _assign(machine: Machine, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        machine.state[name][...] = value


def _load_converted(machine: Machine, found: Checkpoint, first: Mapping[str, Any]) -> None:
    """Load the weights of a converted checkpoint, and initialize those it lacks."""
    started = perf_counter()
    _initialize(machine, first)
    found.begin({p.name: machine.state[p.name] for p in tensors_of(machine.plan)})
    log.info(log_lines.weights_loaded(perf_counter() - started))
    log.info(f"{found.name} is a converted checkpoint: the optimizer's state starts from zero")
    if uninitialized := found.manifest.uninitialized:
        log.warning(f"{found.path} lacks {', '.join(uninitialized)}: initialized from the seed")


def _warn_of_changes(found: Checkpoint, now: Mapping[str, str]) -> None:
    """Warn of a changed seed, batch size, library or number of threads since the checkpoint."""
    for name in ("seed", "batch_size"):
        then = found.manifest.identity.get(name)
        if then is not None and then != now[name]:
            log.warning(
                f"{name} was {then} when {found.name} was written and is {now[name]} now: "
                "the training continues with different data"
            )
    then = found.manifest.identity.get("precision")
    if then is not None and then != now["precision"]:
        log.warning(
            f"precision was {then} when {found.name} was written and is {now['precision']} now: "
            "the training continues with it"
        )
    changes = [
        f"{name} was {then} and is {now[name]}"
        for name in ("numpy", "blas", "threads", "kernels", "num_csx")
        if (then := found.manifest.identity.get(name)) not in (None, now[name])
    ]
    if changes:
        log.warning(
            f"{found.name} was written in another environment: {'; '.join(changes)}: the training "
            "continues, but its results differ in the last digits from an uninterrupted run"
        )


class WarmTensors:
    """Tensors of a warm start, found and checked before anything runs."""

    def __init__(self, start: WarmStart, plan: Plan) -> None:
        tensors = tensors_of(plan)
        self._names = _matching_names(start.tensors, [p.name for p in tensors])
        self.checkpoint: Checkpoint = open_checkpoint(Path(start.checkpoint_path))
        shapes = {p.name: (p.shape, p.dtype) for p in tensors}
        if lines := self.checkpoint.differences_from({name: shapes[name] for name in self._names}):
            raise UsageError(
                f"warm start from {self.checkpoint.path}: {'; '.join(lines)}; select the tensors "
                "to load with warm_start.tensors"
            )

    def take(self, state: Mapping[str, Any]) -> int:
        """Load the tensors into `state`, and return their number."""
        self.checkpoint.take({name: state[name] for name in self._names})
        return len(self._names)


def _matching_names(patterns: tuple[str, ...], names: list[str]) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        try:
            matches = [name for name in names if re.search(pattern, name)]
        except re.error as error:
            raise UsageError(
                f"warm_start.tensors: must be regular expressions, got {pattern!r}: {error}"
            ) from error
        if not matches:
            raise UsageError(
                f"warm_start.tensors: {pattern!r} matches no parameter; the model has "
                f"{', '.join(names)}"
            )
        found.update(dict.fromkeys(matches))
    return list(found)


@dataclass(frozen=True)
class DataSplit:
    """Split of a training's data among its streamers, as far as a checkpoint depends on it.

    Sharded by batch, the training does not depend on the number of streamers. Otherwise each reads
    its own data: at step s, the first ceil((s - i) / N) batches of streamer i of N are consumed,
    and only N streamers can resume from there.
    """

    sharding: Sharding
    streamers: int
    order: str = ORDER

    @staticmethod
    def of(dataset: Dataset) -> "DataSplit":
        return DataSplit(dataset.sharding, shard_info()[1])

    @property
    def is_split(self) -> bool:
        """True if each streamer reads its own data."""
        return self.sharding is not Sharding.BATCH

    def identity(self) -> dict[str, str]:
        """Entries of the checkpoint's identity."""
        kept = {"sharding": str(self.sharding), "order": self.order}
        return {**kept, "streamers": str(self.streamers)} if self.is_split else kept

    def require_same(self, found: Checkpoint, target: Target) -> None:
        """Check that this run can resume the data of a checkpoint.

        Raises: UsageError if the data is split among another number of streamers, or shuffled in
            another order
        """
        identity = found.manifest.identity
        sharding = Sharding(identity.get("sharding", Sharding.BATCH))
        streamers = int(identity.get("streamers", self.streamers))
        then = DataSplit(sharding, streamers, identity.get("order", self.order))
        if then == self:
            return
        if then.order != self.order:
            raise UsageError(
                f"{found.path}: its data order {then.order} differs from {self.order} of this "
                "csrun: "
                "resume with the csrun that wrote it, or start in another model_dir from its "
                "weights (runconfig.warm_start)"
            )
        raise UsageError(
            f"{found.path}: its data was {then._description()}, now it is {self._description()}: "
            f"{then._remedy(self, target)}, or train in another model_dir"
        )

    def _description(self) -> str:
        of = f" among {self.streamers} streamers" if self.is_split else ""
        return f"sharded by {self.sharding}{of}"

    def _remedy(self, now: "DataSplit", target: Target) -> str:
        if self.sharding is not now.sharding:
            return f"change input_fn back to shard by {self.sharding}"
        if target.context is None or target.site is None:
            return f"run it with csrun_wse and {self.streamers} streamers"
        layout = LayoutAdvice.of(target.context.job, target.site.nodes)
        options = layout.options_for_exactly(self.streamers)
        return f"run it with {options}, or shard by batch from the start ({REMEDY[self.sharding]})"
