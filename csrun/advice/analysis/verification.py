"""Verification of a recommendation by a run."""

import msgspec

from csrun.advice.analysis.result import Analysis, VerifiedLayout
from csrun.advice.analysis.scaling import Scaling, StreamerLayout
from csrun.advice.measurements import BackgroundUse, DeliveredRate

STREAMERS_PER_CPU = 16  # each is a process with its own data set


def runnable(analysis: Analysis) -> StreamerLayout:
    """Return the recommended layout, or the largest part of it that fits on this machine.

    If nodes are separate machines, the whole layout is run.
    """
    wanted = analysis.solution.layout
    most = STREAMERS_PER_CPU * analysis.measurements.machine_cpus
    if not analysis.site.one_machine or wanted.streamers <= most:
        return wanted
    scaling = Scaling(analysis.measurements, analysis.site)
    parts = (
        scaling.layout(nodes, tasks, wanted.cpus_per_task)
        for nodes in range(1, wanted.nodes + 1)
        for tasks in range(1, wanted.tasks_per_node + 1)
    )
    return max(
        (part for part in parts if 0 < part.streamers <= most), key=lambda part: part.streamers
    )


def verified(
    analysis: Analysis, layout: StreamerLayout, fed: DeliveredRate, beside: BackgroundUse
) -> Analysis:
    """Return the analysis with the result of a run of `layout`."""
    deviation = fed.samples_per_s / layout.samples_per_s - 1
    return msgspec.structs.replace(
        analysis, verified=VerifiedLayout(layout, fed, deviation, beside)
    )
