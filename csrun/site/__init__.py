"""What hardware there is: YAML to frozen structs; the shipped sites lie in `site_configs/`."""

from csrun.site.load import DEFAULT_SITE, load, resolve
from csrun.site.model import Defaults, Nodes, Scheduler, Site, System

__all__ = ["DEFAULT_SITE", "Defaults", "Nodes", "Scheduler", "Site", "System", "load", "resolve"]
