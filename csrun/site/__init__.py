"""What hardware there is: YAML to frozen structs; the shipped sites lie in `site_configs/`."""

from csrun.site.layout import STREAMING_SINGLE_TASK_NODES, JobLayout
from csrun.site.load import DEFAULT_SITE, load, resolve
from csrun.site.model import DEFAULT_PORT, Defaults, Nodes, Scheduler, Site, System, with_port

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_SITE",
    "STREAMING_SINGLE_TASK_NODES",
    "Defaults",
    "JobLayout",
    "Nodes",
    "Scheduler",
    "Site",
    "System",
    "load",
    "resolve",
    "with_port",
]
