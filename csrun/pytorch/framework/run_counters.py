"""Counters of a run, under the names of the script's performance record."""

from csrun.pytorch.run.session_roles import active_run

_BOUND = 0.2  # share of the time, as in csrun's record


def metrics_counter_value(name: str) -> float | None:
    """Return a counter of the original; None for one that csrun does not have."""
    run = active_run()
    if run is None:
        return None
    found = run.times()
    return {
        "CerebrasCompileTimeMs": found.compile_s * 1e3,
        "CerebrasProgrammingTimeNs": found.programming_s * 1e9,
        "CerebrasSystemEstSamples": found.estimate,
    }.get(name)


def print_metrics_report() -> None:
    """Log the counters."""
    names = ("CerebrasCompileTimeMs", "CerebrasProgrammingTimeNs", "CerebrasSystemEstSamples")
    for name in names:
        print(name, metrics_counter_value(name))


def input_bottleneck() -> str:
    """Return what limited the steps, in the words of the script's performance record."""
    run = active_run()
    if run is None:
        return "Not Applicable"
    share = run.times().input_share
    return f"Input bound: steps waited {share:.1%} of the time" if share > _BOUND else "None"


def locate_csperf_log(pattern: str) -> str | None:
    """Return the path of a run's record; None if nothing ran."""
    return None if active_run() is None else pattern


class AssessBottlenecks:
    """Assessment of a run; record: path as from `locate_csperf_log`."""

    def __init__(self, record: str) -> None:
        self.record = record

    def assess_bottleneck_main(self) -> str:
        """Return what limited the steps."""
        return input_bottleneck()
