"""Hardware of a site: YAML files decoded to frozen structs; `site_configs/` has the shipped
ones.
"""

from csrun.site.layout import JobLayout, streaming_single_task_nodes
from csrun.site.load import DEFAULT_SITE, load, resolve
from csrun.site.site import (
    DEFAULT_PORT,
    Defaults,
    Nodes,
    Retention,
    Scheduler,
    Site,
    SlurmOptionValues,
    System,
    with_port,
)

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_SITE",
    "Defaults",
    "JobLayout",
    "Nodes",
    "Retention",
    "Scheduler",
    "Site",
    "SlurmOptionValues",
    "System",
    "load",
    "resolve",
    "streaming_single_task_nodes",
    "with_port",
]
