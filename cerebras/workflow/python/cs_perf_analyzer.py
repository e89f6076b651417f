"""Bottleneck analysis of a run, from csrun's record: `csrun.pytorch.framework.run_counters`."""

from csrun.pytorch.framework.run_counters import AssessBottlenecks, locate_csperf_log

__all__ = ["AssessBottlenecks", "locate_csperf_log"]
