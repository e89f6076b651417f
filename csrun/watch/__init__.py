"""State of a site and of one job at a moment: collected from what jobs publish, and drawn."""

from csrun.watch.collect import Collector
from csrun.watch.snapshot import Snapshot

__all__ = ["Collector", "Snapshot"]
