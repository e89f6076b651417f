"""What a training starts from: initial weights, part of another's, or a checkpoint of its own."""

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
from csrun.estimator.layout import LayoutAdvice
from csrun.estimator.place import Target
from csrun.estimator.run import Run
from csrun.executable import Plan, tensors_of
from csrun.records import log_lines
from csrun.records.checkpoints import Checkpoint, open_checkpoint
from csrun.runtime.chief.machine import Machine

log = logging.getLogger("csrun")

REMEDY = {
    Sharding.FILE: "leave shard_files out of input_fn",
    Sharding.USER: "leave shard out of input_fn",
}


def load_weights(
    run: Run, machine: Machine, found: Checkpoint | None, warm: "WarmTensors | None"
) -> None:
    """Fill a machine's state: from the checkpoint, or initial weights and what is warm started."""
    started = perf_counter()
    if found is not None:
        log.info(log_lines.restoring(found.path))
        if found.manifest.is_converted:
            _begin(run, machine, found)
            return
        _warn_of_changes(found, run.identity(machine.plan))
        found.restore(machine.state)
        log.info(log_lines.weights_loaded(perf_counter() - started))
        return
    machine.initialize()
    log.info(log_lines.weights_initialized(perf_counter() - started))
    if warm is not None:
        count = warm.take(machine.state)
        log.info(f"Warm start: {count} tensors from {warm.checkpoint.path}")


def _begin(run: Run, machine: Machine, found: Checkpoint) -> None:
    """Weights of another program's model; first values for what it has none of, told by name."""
    started = perf_counter()
    machine.initialize()
    found.begin({p.name: machine.state[p.name] for p in tensors_of(machine.plan)})
    log.info(log_lines.weights_loaded(perf_counter() - started))
    log.info(f"{found.name} is converted: the optimizer's state starts anew")
    if undrawn := found.manifest.undrawn:
        log.warning(f"not in {found.path}, and drawn by the seed: {', '.join(undrawn)}")


def _warn_of_changes(found: Checkpoint, now: Mapping[str, str]) -> None:
    """What a resumed run trains on depends on these; tensors' types show the precision."""
    for name in ("seed", "batch_size"):
        then = found.manifest.identity.get(name)
        if then is not None and then != now[name]:
            log.warning(
                f"{name} was {then} when {found.name} was written and is {now[name]} now: "
                "the training goes on with other data than without the change"
            )
    changes = [
        f"{name} was {then} and is {now[name]}"
        for name in ("numpy", "blas", "threads", "num_csx")
        if (then := found.manifest.identity.get(name)) not in (None, now[name])
    ]
    if changes:
        log.warning(
            f"{found.name} was written elsewhere: {'; '.join(changes)}: the training goes on, but "
            "its last digits are not those of one that was never interrupted"
        )


class WarmTensors:
    """The tensors that a warm start takes, found and checked before anything runs."""

    def __init__(self, start: WarmStart, plan: Plan) -> None:
        tensors = tensors_of(plan)
        self._names = _chosen(start.tensors, [p.name for p in tensors])
        self.checkpoint: Checkpoint = open_checkpoint(Path(start.checkpoint_path))
        shapes = {p.name: (p.shape, p.dtype) for p in tensors}
        if lines := self.checkpoint.unlike({name: shapes[name] for name in self._names}):
            raise UsageError(
                f"warm start from {self.checkpoint.path}: {'; '.join(lines)}; choose the tensors "
                "to take with warm_start.tensors"
            )

    def take(self, state: Mapping[str, Any]) -> int:
        """Put the tensors into `state`, and return how many they are."""
        self.checkpoint.take({name: state[name] for name in self._names})
        return len(self._names)


def _chosen(patterns: tuple[str, ...], names: list[str]) -> list[str]:
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
                f"warm_start.tensors: {pattern!r} is found in no parameter; the model has "
                f"{', '.join(names)}"
            )
        found.update(dict.fromkeys(matches))
    return list(found)


@dataclass(frozen=True)
class DataSplit:
    """How a training's data is split among its streamers, as far as a checkpoint depends on it.

    Sharded by batch, what is trained does not depend on the number of streamers. Otherwise each
    has data of its own, at its own batch: step s of N streamers has consumed the first
    ceil((s - i) / N) batches of streamer i, and only N streamers can go on from there.
    """

    sharding: Sharding
    streamers: int
    order: str = ORDER

    @staticmethod
    def of(dataset: Dataset) -> "DataSplit":
        return DataSplit(dataset.sharding, shard_info()[1])

    @property
    def apart(self) -> bool:
        """Whether each streamer has data of its own."""
        return self.sharding is not Sharding.BATCH

    def identity(self) -> dict[str, str]:
        """What a checkpoint keeps of it."""
        kept = {"sharding": str(self.sharding), "order": self.order}
        return {**kept, "streamers": str(self.streamers)} if self.apart else kept

    def require_same(self, found: Checkpoint, target: Target) -> None:
        """See whether this run can go on with the data of the checkpoint's.

        Raises: UsageError when the data was, or is, split among another number of streamers, or
            shuffled in another order
        """
        identity = found.manifest.identity
        sharding = Sharding(identity.get("sharding", Sharding.BATCH))
        streamers = int(identity.get("streamers", self.streamers))
        then = DataSplit(sharding, streamers, identity.get("order", self.order))
        if then == self:
            return
        if then.order != self.order:
            raise UsageError(
                f"{found.path}: its run shuffled its data in another order ({then.order}) than "
                f"this csrun does ({self.order}): go on with the csrun that wrote it, or train in "
                "another model_dir, from its weights with runconfig.warm_start"
            )
        raise UsageError(
            f"{found.path}: its run had its data {then._text()}, this one has it {self._text()}: "
            f"{then._remedy(self, target)}, or train in another model_dir"
        )

    def _text(self) -> str:
        of = f" among {self.streamers} streamers" if self.apart else ""
        return f"sharded by {self.sharding}{of}"

    def _remedy(self, now: "DataSplit", target: Target) -> str:
        if self.sharding is not now.sharding:
            return f"let input_fn shard by {self.sharding} again"
        if target.context is None or target.site is None:
            return f"run it with csrun_wse and {self.streamers} streamers"
        layout = LayoutAdvice.of(target.context.job, target.site.nodes)
        options = layout.options_for_exactly(self.streamers)
        return f"run it with {options}, or shard by batch from the start ({REMEDY[self.sharding]})"
