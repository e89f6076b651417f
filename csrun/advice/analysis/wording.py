"""The sentences of an analysis, for the terminal and the page alike."""

from csrun.advice.analysis.bottleneck import Limiting
from csrun.advice.analysis.laws import Fit, Law, LawName
from csrun.advice.analysis.result import Analysis, Verified
from csrun.advice.analysis.scaling import Bound, Limit

SCATTERED = 0.15  # how far a law may miss points before they are to be measured again
DISTURBED = 0.1  # of a point's rate, or a CPU: what other work may take before it is told
SHARED = {
    Bound.NOTHING: "Tasks of one machine were not in each other's way.",
    Bound.CPUS: "Tasks of one machine share its CPUs.",
    Bound.RESOURCE: "Tasks share something that is no CPU: a disk, the network or a lock.",
    Bound.REPLAY: "Each task makes all batches, and throws the others' away.",
}
LIMITS = {
    Limit.NODES: "the nodes: all that the job may have, full of tasks, are too few",
    Limit.CPUS: "the CPUs: they compute without a pause",
    Limit.RESOURCE: "a disk, the network or a lock, which does not grow with tasks",
    Limit.REPLAY: "that each streamer makes all batches: shard the data, and it makes its own only",
    Limit.FILES: "the number of files: each streamer needs one of its own",
    Limit.LINK: "the link to the CS system, which takes in no more",
}


def count(value: float) -> str:
    """Whole from a hundred on, with three digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def microseconds(value: float) -> str:
    """With two decimals."""
    return f"{value:,.2f}"


def percent(share: float) -> str:
    """Of 1, with one decimal."""
    return f"{100 * share:.1f}%"


def deviation(share: float) -> str:
    """With its sign."""
    return f"{100 * share:+.1f}%"


def several(number: int, noun: str) -> str:
    """A number of things: 1 node, 2 nodes."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def heading(analysis: Analysis) -> dict[str, str]:
    """What was analysed, on what, for what."""
    measured, site, target = analysis.measurements, analysis.site, analysis.target
    where = "all on this machine" if site.one_machine else "a machine each"
    nodes = f"{several(site.nodes, 'node')} of {several(site.node_cpus, 'CPU')}"
    return {
        "Batch": f"{several(measured.batch_size, 'sample')} of {measured.sample_bytes:,} B",
        "Measured on": f"{several(measured.machine_cpus, 'CPU')} of this machine",
        "Site": f"{site.name}: at most {nodes}, {where}",
        "Target": f"{count(target.samples_per_s)} samples/s, {target.source}",
        "With a margin": f"{count(target.wanted)} samples/s, {target.margin:.0%} above",
    }


def law(found: Law) -> str:
    """The law's formula, for n tasks."""
    line = f"{count(found.rate)} n"
    if found.name is LawName.ROOFLINE and found.cap is not None:
        return f"min({line}, {count(found.cap)})"
    terms = [f"{found.sigma:.3g} (n - 1)", f"{found.kappa:.3g} n (n - 1)"]
    used = {LawName.LINEAR: 0, LawName.AMDAHL: 1, LawName.USL: 2}[found.name]
    return f"{line} / (1 + {' + '.join(terms[:used])})" if used else line


def laws(analysis: Analysis) -> list[str]:
    """The law that the recommendation rests on: what it is, how good, how far it is trusted."""
    fit = analysis.fit
    name = fit.law.name[0].upper() + fit.law.name[1:]
    lines = [f"{name} law: samples/s = {law(fit.law)} for n tasks, {_cpus(fit)}"]
    if fit.error is not None:
        lines.append(f"A point that it is not shown it misses by {percent(fit.error)}.")
    lines += _doubts(analysis)
    lines.append(f"{SHARED[analysis.bound]} {_growth(analysis)}")
    if fit.ceiling is not None:
        lines.append(f"The CPUs measured can make {count(fit.ceiling)} samples/s at most.")
    if analysis.extrapolated:
        lines.append(
            f"Beyond {several(fit.most_tasks, 'task')} on a machine the law is extrapolated."
        )
    return lines


def _doubts(analysis: Analysis) -> list[str]:
    """What other work on the machine has done to the measurements."""
    fit, lines = analysis.fit, []
    disturbed = min(point.measured / point.undisturbed for point in fit.points) < 1 - DISTURBED
    if disturbed:
        line = "Other work took CPUs: the law is that of the undisturbed rates, without it."
        if analysis.site.one_machine:
            line += f" What is predicted is {percent(analysis.left)} of that, what it left."
        lines.append(line)
    if disturbed or (fit.error or 0.0) > SCATTERED:
        lines.append("Measure again when nothing else runs on this machine to be sure.")
    return lines


def _cpus(fit: Fit) -> str:
    return f"{several(fit.cpus, 'CPU')} each"


def _growth(analysis: Analysis) -> str:
    if analysis.site.one_machine:
        return (
            "The nodes are one machine: the law is that of all streamers, whose batches are taken"
            " in turn, before a wafer takes its part of the CPUs."
        )
    if analysis.bound is Bound.RESOURCE:
        return "Nodes may share it, too: the law is taken for all streamers together."
    if analysis.bound is Bound.REPLAY:
        return "So do those of other nodes: the law is taken for all streamers together."
    growth = analysis.site.node_cpus / analysis.measurements.machine_cpus
    node = "" if growth == 1 else f", each as {growth:.3g} of the machine that was measured"
    return f"Nodes add up{node}, up to the {count(analysis.link)} samples/s of the system's link."


def limiting(found: Limiting) -> str:
    """The stage, its share, and what to do."""
    stage = found.stage
    return f"{stage.name}: {percent(stage.share)} of a worker's time; {found.advice}."


def outcome(analysis: Analysis) -> list[str]:
    """What the recommended layout reaches; when that is too little: why, and what would help."""
    solution, target = analysis.solution, analysis.target
    rate = solution.layout.samples_per_s
    delivered = f"{_streamers(analysis)} {count(rate)} samples/s"
    if solution.limit is None:
        return [f"{delivered}: the target is reached."]
    limit = f"What limits is {LIMITS[solution.limit]}."
    if rate >= target.samples_per_s:
        margin = percent(rate / target.samples_per_s - 1)
        return [f"{delivered}: the target is reached, with a margin of {margin} only.", limit]
    return [
        f"{delivered}, the maximum on this site: the target with its margin is"
        f" {solution.missing:.3g} times as much.",
        limit,
        *_speedup(analysis),
    ]


def _speedup(analysis: Analysis) -> list[str]:
    found = analysis.limiting
    if found is None or analysis.solution.limit is Limit.LINK:
        return []
    if found.speedup is None:
        return [f"A faster {found.stage.name} alone is not enough: the other stages take too long."]
    return [f"{found.stage.name} alone would have to be {found.speedup:.3g} times as fast."]


def _streamers(analysis: Analysis) -> str:
    number = analysis.solution.layout.streamers
    return f"{several(number, 'streamer')} {'delivers' if number == 1 else 'deliver'}"


def verified(found: Verified) -> str:
    """A run beside its prediction."""
    layout, fed = found.layout, found.fed
    return (
        f"{several(fed.streamers, 'streamer')} on {several(layout.nodes, 'node')},"
        f" {fed.seconds:.3g} s: measured"
        f" {count(fed.samples_per_s)} samples/s, predicted {count(layout.samples_per_s)}"
        f" ({deviation(found.deviation)}){_beside(found)}"
    )


def _beside(found: Verified) -> str:
    if found.other_cpus < DISTURBED:
        return ""
    return f", while other work used {found.other_cpus:.2g} CPUs of this machine"
