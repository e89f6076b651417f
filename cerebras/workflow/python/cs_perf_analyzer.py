"""What held a run up: `csrun.pytorch.framework.run_counters`, from csrun's own record."""

from csrun.pytorch.framework.run_counters import AssessBottlenecks, locate_csperf_log

__all__ = ["AssessBottlenecks", "locate_csperf_log"]
