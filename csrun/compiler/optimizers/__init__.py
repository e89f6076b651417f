"""Optimizers in the program's update functions: formulas over flat arrays.

They become `lair` loops: intermediate values are in scratch tiles, which stay in the cache, and
only the arrays' new values are written to memory.
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
from csrun.compiler.optimizers.base import CYCLED, EARLIER, Optimizer, PerTensor
from csrun.compiler.optimizers.descent import Sgd
from csrun.executable.learning_rate import Schedule, StepNumber

__all__ = ["CYCLED", "EARLIER", "SLOTS", "Optimizer", "PerTensor", "optimizer_of", "schedule_of"]

#: The optimizer of each algorithm, with the same field names.
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
#: Names of all optimizers' state tensors.
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
    """Return the optimizer of an update operator."""
    algorithm: Any = operation.properties["algorithm"]
    kind = _OPTIMIZERS.get(type(algorithm))
    if kind is None:
        return None
    names = [field.name for field in fields(kind) if not field.kw_only]
    options: dict[str, Any] = {name: _plain(getattr(algorithm, name)) for name in names}
    earlier = operation.earlier_updates
    return kind(**options, earlier=None if earlier is None else StepNumber(earlier.index.data))


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
    """Return the schedule that an attribute describes."""
    plain = {"scheduler": attribute.kind.data, **attribute.numbers}
    schedule: Schedule = msgspec.convert(plain, Schedule)
    return schedule
