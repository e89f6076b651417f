"""Optimizers as the program's update functions see them: formulas over flat arrays.

What they make is loops of `lair`: what is on the way is in a tile of scratch, which stays in the
cache, and only what an array takes over is written to memory.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec
from xdsl.dialects import builtin

from csrun.cirh.algorithms import (
    AdadeltaAttr,
    AdagradAttr,
    AdamAttr,
    AdamaxAttr,
    LambAttr,
    NAdamAttr,
    RAdamAttr,
    RmsPropAttr,
    ScheduleAttr,
    SgdAttr,
    StepNumberAttr,
)
from csrun.cirh.ops.learning import UpdatingOp
from csrun.compiler.optimizers.adam import Adam, Lamb
from csrun.compiler.optimizers.adam_variants import Adamax, NAdam, RAdam
from csrun.compiler.optimizers.adaptive import Adadelta, Adagrad, RmsProp
from csrun.compiler.optimizers.base import CYCLED, Optimizer, PerTensor
from csrun.compiler.optimizers.descent import Sgd
from csrun.executable.learning_rate import Schedule, StepNumber

__all__ = ["CYCLED", "SLOTS", "Optimizer", "PerTensor", "optimizer_of", "schedule_of"]

#: The optimizer of each algorithm; its fields have the names of the algorithm's.
_OPTIMIZERS: Mapping[type[Any], type[Optimizer]] = {
    SgdAttr: Sgd,
    AdamAttr: Adam,
    LambAttr: Lamb,
    AdagradAttr: Adagrad,
    RmsPropAttr: RmsProp,
    AdamaxAttr: Adamax,
    NAdamAttr: NAdam,
    RAdamAttr: RAdam,
    AdadeltaAttr: Adadelta,
}
#: The names of all optimizers' state tensors.
SLOTS = (
    "momentum",
    "velocity",
    "gradient_sum",
    "gradient_mean",
    "square_sum",
    "largest_square_sum",
    "infinity_norm",
    "delta_sum",
)


def optimizer_of(operation: UpdatingOp) -> Optimizer | None:
    """The optimizer that an update operator stands for."""
    algorithm: Any = operation.properties["algorithm"]
    kind = _OPTIMIZERS.get(type(algorithm))
    if kind is None:
        return None
    names = [field.name for field in fields(kind)]
    options: dict[str, Any] = {name: _plain(getattr(algorithm, name)) for name in names}
    return kind(**options)


def _plain(attribute: Any) -> Schedule | StepNumber | float | bool:
    match attribute:
        case StepNumberAttr():
            return StepNumber(attribute.index.data)
        case ScheduleAttr():
            return schedule_of(attribute)
        case builtin.IntegerAttr():
            return bool(attribute.value.data)
        case _:
            return float(attribute.value.data)


def schedule_of(attribute: ScheduleAttr) -> Schedule:
    """The schedule that an attribute describes."""
    plain = {"scheduler": attribute.kind.data, **attribute.numbers}
    schedule: Schedule = msgspec.convert(plain, Schedule)
    return schedule
