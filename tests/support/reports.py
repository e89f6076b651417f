"""Reports of a real compile, placed and estimated by hand."""

from pathlib import Path

import msgspec
from support.programs import SYSTEM, Network

from csrun.base.mode import ExecutionMode
from csrun.compiler.passes import Stage
from csrun.compiler.report.contents import GeneratedKernel, Report
from csrun.executable import Estimate, LayerEstimate, Plan, Rectangle, Region

WAFER = Rectangle(0, 0, 757, 984)
#: Four layers: slabs of different shapes, and one of a few PEs.
RECTANGLES = (
    Rectangle(0, 0, 400, 600),
    Rectangle(400, 0, 357, 600),
    Rectangle(0, 600, 757, 380),
    Rectangle(0, 980, 3, 4),
)
NAMES = ("embedding", "block_0.attention", "block_0." + "mlp." * 15, '<b>head</b> & "co"')
KINDS = ("embedding", "attention", "fc", "fc")
STAGES = (
    Stage("trace", "module"),
    Stage("canonical", "module", ("canonical: 1.4 ms", "    view-of-view: 3"), 1.4),
    Stage("gradient", "module", ("gradient: 7.5 ms", "    8 parameters have a gradient"), 7.5),
)
GENERATED = (GeneratedKernel("generated_0", NAMES[2], ("cirh.sine", "cirh.multiply")),)


def report_of(folder: Path, names=NAMES, **changes) -> Report:
    """A report of four layers in a pipelined compile, with changes to its fields."""
    network = Network(sizes=(12, 40, 30, 20, 5))
    executable = network.compile(folder, changes.pop("mode", ExecutionMode.PIPELINED))
    fields = {
        "plan": placed(executable.plan, names),
        "system": SYSTEM,
        "stages": STAGES,
        "kernels": "forward_0\n    dense: fc: input/features -> dense/relu\n",
        "program": executable.program,
        "generated": GENERATED,
    }
    return Report(**{**fields, **changes})


def placed(plan: Plan, names=NAMES) -> Plan:
    """The plan with names, the kinds and rectangles above, and an estimate of each layer."""
    streaming = plan.mode is ExecutionMode.WEIGHT_STREAMING
    rectangles = (WAFER,) * len(names) if streaming else RECTANGLES
    layers = tuple(
        msgspec.structs.replace(layer, name=name, kernel=kind)
        for layer, name, kind in zip(plan.layers, names, KINDS, strict=True)
    )
    each = tuple(
        LayerEstimate(name, rectangle.pes, rate, rate, 2e6, 0.31)
        for name, rectangle, rate in zip(names, rectangles, (5e5, 123456.0, 3e5, 4.25), strict=True)
    )
    named = {layer.name: name for layer, name in zip(plan.layers, names, strict=True)}
    return msgspec.structs.replace(
        plan,
        layers=layers,
        groups=tuple(
            msgspec.structs.replace(group, layers=tuple(named[layer] for layer in group.layers))
            for group in plan.groups
        ),
        floor_plan=tuple(map(Region, names, rectangles)),
        estimate=Estimate(123456.0, 123456.0, 2e6, 0.9998, 0.0000421, each),
    )
