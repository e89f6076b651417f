"""Learning algorithms as attributes of `minimize` and of the update operators."""

from xdsl.ir import Attribute

from csrun.cirh.algorithms.adam import AdamAttr, LambAttr
from csrun.cirh.algorithms.adam_variants import AdamaxAttr, NAdamAttr, RAdamAttr
from csrun.cirh.algorithms.adaptive import AdadeltaAttr, AdagradAttr, RmsPropAttr
from csrun.cirh.algorithms.base import Algorithm
from csrun.cirh.algorithms.descent import SgdAttr
from csrun.cirh.algorithms.schedule import SCHEDULES, Number, Rate, ScheduleAttr, StepNumberAttr

__all__ = [
    "ATTRIBUTES",
    "SCHEDULES",
    "AdadeltaAttr",
    "AdagradAttr",
    "AdamAttr",
    "AdamaxAttr",
    "Algorithm",
    "LambAttr",
    "NAdamAttr",
    "Number",
    "RAdamAttr",
    "Rate",
    "RmsPropAttr",
    "ScheduleAttr",
    "SgdAttr",
    "StepNumberAttr",
]

ATTRIBUTES: tuple[type[Attribute], ...] = (
    ScheduleAttr,
    StepNumberAttr,
    SgdAttr,
    AdamAttr,
    LambAttr,
    AdagradAttr,
    RmsPropAttr,
    AdamaxAttr,
    NAdamAttr,
    RAdamAttr,
    AdadeltaAttr,
)
