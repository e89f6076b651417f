"""Sentences of an analysis, for terminal and page."""

from csrun.advice.analysis.bottleneck import Limiting
from csrun.advice.analysis.laws import Fit, Law, LawName
from csrun.advice.analysis.result import Analysis, VerifiedLayout
from csrun.advice.analysis.scaling import Saturation, ScalingLimit
from csrun.advice.analysis.solve import FeedTarget
from csrun.advice.measurements import BackgroundUse
from csrun.advice.numbers import count, deviation, percent, several, with_spread

SCATTERED = 0.15  # error of a law above which the report advises measuring again
DISTURBED = 0.1  # of a point's rate, or a CPU: use by other work above which it is reported
SHARED = {
    Saturation.NOTHING: "Tasks on one machine did not slow each other down.",
    Saturation.CPUS: "The input is CPU-bound: tasks on one machine share its CPUs.",
    Saturation.RESOURCE: "Tasks share a resource other than CPUs: a disk, the network or a lock.",
    Saturation.REPLAY: "Each task makes every batch, and drops those of the others.",
}
LIMITS = {
    ScalingLimit.NODES: "the number of nodes: all nodes that the job may use are full",
    ScalingLimit.CPUS: "the CPUs: the input is CPU-bound",
    ScalingLimit.RESOURCE: "a disk, the network or a lock, which does not scale with tasks",
    ScalingLimit.REPLAY: "each streamer making every batch: shard the data",
    ScalingLimit.FILES: "the number of files: each streamer needs its own",
    ScalingLimit.LINK: "the link to the CS system, which is saturated",
}


def heading(analysis: Analysis) -> dict[str, str]:
    """Return the subject, machine, site and target of the analysis."""
    measured, site, target = analysis.measurements, analysis.site, analysis.target
    where = "all on this machine" if site.one_machine else "one machine each"
    nodes = f"{several(site.nodes, 'node')} of {several(site.node_cpus, 'CPU')}"
    return {
        "Batch": f"{several(measured.batch_size, 'sample')} of {measured.sample_bytes:,} B",
        "Measured on": f"{several(measured.machine_cpus, 'CPU')} of this machine",
        "Site": f"{site.name}: at most {nodes}, {where}",
        "Target": f"{_target(target)} samples/s, {target.source}",
        "With a margin": f"{count(target.wanted)} samples/s, {percent(target.margin)} above",
    }


def _target(target: FeedTarget) -> str:
    if not target.spread:
        return count(target.samples_per_s)
    return with_spread(target.samples_per_s, target.spread)


def law(found: Law) -> str:
    """Format a law as a formula of n tasks."""
    line = f"{count(found.rate)} n"
    if found.name is LawName.ROOFLINE and found.cap is not None:
        return f"min({line}, {count(found.cap)})"
    terms = [f"{found.sigma:.3g} (n - 1)", f"{found.kappa:.3g} n (n - 1)"]
    used = {LawName.LINEAR: 0, LawName.AMDAHL: 1, LawName.USL: 2}[found.name]
    return f"{line} / (1 + {' + '.join(terms[:used])})" if used else line


def laws(analysis: Analysis) -> list[str]:
    """Describe the law of the recommendation, its error and its limits."""
    fit = analysis.fit
    name = fit.law.name[0].upper() + fit.law.name[1:]
    lines = [f"{name} law: samples/s = {law(fit.law)} for n tasks, {_cpus(fit)}"]
    if fit.error is not None:
        lines.append(f"Leave-one-out error: {percent(fit.error)}.")
    lines += _doubts(analysis)
    lines.append(f"{_shared(analysis)} {_growth(analysis)}")
    if fit.ceiling is not None and fit.ceiling < fit.law.highest:
        lines.append(
            f"By CPU time per sample, the measured CPUs deliver at most {count(fit.ceiling)}"
            " samples/s, for any number of tasks."
        )
    if analysis.extrapolated:
        lines.append(
            f"Beyond {several(fit.most_tasks, 'task')} per machine the law is extrapolated."
        )
    return lines


def _shared(analysis: Analysis) -> str:
    if analysis.saturation is Saturation.NOTHING and analysis.solution.limit is ScalingLimit.CPUS:
        return "The measured tasks did not slow each other down; more of them share the CPUs."
    return SHARED[analysis.saturation]


def _doubts(analysis: Analysis) -> list[str]:
    """Describe the effect of other work on the measurements."""
    fit, lines = analysis.fit, []
    disturbed = min(point.measured / point.undisturbed for point in fit.points) < 1 - DISTURBED
    if disturbed:
        line = "Other processes used CPUs: the law is fitted to corrected rates."
        if analysis.site.one_machine:
            line += f" Predictions assume the {percent(analysis.left)} of CPU time that was free."
        lines.append(line)
    if disturbed or (fit.error or 0.0) > SCATTERED:
        lines.append("Measure again when nothing else runs on this machine.")
    return lines


def _cpus(fit: Fit) -> str:
    return f"{several(fit.cpus, 'CPU')} each"


def _growth(analysis: Analysis) -> str:
    if analysis.site.one_machine:
        return (
            "All nodes are this machine: rates are totals of all streamers, without the CPU use of "
            "the wafer."
        )
    if analysis.saturation is Saturation.RESOURCE:
        return "Nodes may share it, too: the law is applied to the total of all streamers."
    if analysis.saturation is Saturation.REPLAY:
        return "So do tasks on other nodes: the law is applied to the total of all streamers."
    growth = analysis.site.node_cpus / analysis.measurements.machine_cpus
    node = "" if growth == 1 else f", each counting as {growth:.3g} of the measured machine"
    return (
        f"Rates of nodes add up{node}, up to {count(analysis.link)} samples/s, the system's link."
    )


def limiting(found: Limiting) -> str:
    """Describe the limiting stage: its share, and the advice."""
    time = "CPU time" if found.is_cpu_bound else "time"
    return f"{found.stage.name}: {found.share:.0%} of the stages' {time}; {found.advice}."


def outcome(analysis: Analysis) -> list[str]:
    """Describe the rate of the recommended layout, or its limit and the remedy."""
    solution, target = analysis.solution, analysis.target
    rate = solution.layout.samples_per_s
    delivered = f"{_streamers(analysis)} {count(rate)} samples/s"
    if solution.limit is None:
        return [f"{delivered}: the target is reached."]
    limit = f"Limited by {LIMITS[solution.limit]}."
    if rate >= target.samples_per_s:
        margin = percent(rate / target.samples_per_s - 1)
        return [f"{delivered}: the target is reached, but with a margin of only {margin}.", limit]
    return [
        f"{delivered}, {_of_most(analysis)}: the target with its margin is"
        f" {solution.missing:.3g} times as high.",
        limit,
        *_speedup(analysis),
    ]


def _of_most(analysis: Analysis) -> str:
    layout, most = analysis.solution.layout, analysis.solution.most
    text = "the maximum on this site"
    if most.samples_per_s > layout.samples_per_s:
        where = f"{several(most.streamers, 'streamer')} on {several(most.nodes, 'node')}"
        text = f"nearly {text}, {count(most.samples_per_s)} of {where}"
    measured = max(point.measured for point in analysis.fit.points)
    if (
        analysis.site.one_machine and measured > most.samples_per_s
    ):  # the law is below the measured point
        text += f" by the law, {count(measured)} by a measurement"
    return text


def _speedup(analysis: Analysis) -> list[str]:
    found = analysis.limiting
    if found is None or analysis.solution.limit is ScalingLimit.LINK:
        return []
    if found.speedup is None:
        return [f"Speeding up {found.stage.name} is not enough: the other stages are too slow."]
    return [f"{found.stage.name} would have to be {found.speedup:.3g} times as fast."]


def _streamers(analysis: Analysis) -> str:
    number = analysis.solution.layout.streamers
    return f"{several(number, 'streamer')} {'delivers' if number == 1 else 'deliver'}"


def verdict(analysis: Analysis) -> str:
    """Return whether the run is within the error of the prediction, in words."""
    found = analysis.verified
    error = max(DISTURBED, *(fit.error or 0.0 for fit in analysis.fits))
    return "Verified" if found and abs(found.deviation) <= error else "Not verified"


def verified(found: VerifiedLayout) -> str:
    """Compare a run with its prediction."""
    layout, fed = found.layout, found.fed
    return (
        f"{several(fed.streamers, 'streamer')} on {several(layout.nodes, 'node')},"
        f" {fed.seconds:.3g} s: measured"
        f" {count(fed.samples_per_s)} samples/s, predicted {count(layout.samples_per_s)}"
        f" ({deviation(found.deviation)}){background_clause(found.beside)}"
    )


def background_clause(use: BackgroundUse) -> str:
    """Clause about CPU use by other processes; empty if negligible."""
    if use.cpus < DISTURBED:
        return ""
    names = f" ({', '.join(use.busiest)})" if use.busiest else ""
    return f", while other processes used {use.cpus:.2g} CPUs of this machine{names}"
