"""What a compile leaves behind and a wafer loads; compiler and runtime meet only here."""

from csrun.executable import schedule
from csrun.executable.bind import (
    Batch,
    Runtime,
    Step,
    UpdateProgram,
    WaferProgram,
    flat_views,
    state_views,
    view,
    wafer_views,
)
from csrun.executable.executable import Executable, load, program_digest
from csrun.executable.plan import (
    ALIGNMENT_BYTES,
    PADDING_LABEL,
    Buffer,
    Estimate,
    Group,
    Initializer,
    InitializerKind,
    InputSpec,
    Layer,
    Output,
    Parameter,
    Plan,
    RunMode,
    Store,
)
from csrun.executable.schedule import SCHEDULES, Constant, Schedule
from csrun.executable.tiles import tiles

__all__ = [
    "ALIGNMENT_BYTES",
    "PADDING_LABEL",
    "SCHEDULES",
    "Batch",
    "Buffer",
    "Constant",
    "Estimate",
    "Executable",
    "Group",
    "Initializer",
    "InitializerKind",
    "InputSpec",
    "Layer",
    "Output",
    "Parameter",
    "Plan",
    "RunMode",
    "Runtime",
    "Schedule",
    "Step",
    "Store",
    "UpdateProgram",
    "WaferProgram",
    "flat_views",
    "load",
    "program_digest",
    "schedule",
    "state_views",
    "tiles",
    "view",
    "wafer_views",
]
