"""State of a site and of one job at a moment: collected from published data, and displayed."""

from csrun.watch.collect import Collector
from csrun.watch.site_snapshot import SiteSnapshot

__all__ = ["Collector", "SiteSnapshot"]
