"""Starting a training with a part of another training's weights."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csrun.base.errors import UsageError
from csrun.estimator.config import WarmStart
from csrun.executable import Plan
from csrun.records.checkpoints import Checkpoint, open_checkpoint


class WarmTensors:
    """The tensors that a warm start takes, found and checked before anything runs."""

    def __init__(self, start: WarmStart, plan: Plan) -> None:
        self._names = _chosen(start.tensors, [p.name for p in plan.parameters])
        self.checkpoint: Checkpoint = open_checkpoint(Path(start.checkpoint_path))
        shapes = {p.name: (p.shape, p.dtype) for p in plan.parameters}
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
