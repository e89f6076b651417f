"""Which CS system a job on a cluster is to get: decided before it is queued, by its command."""

from csrun import system
from csrun.launch.plan import JobPlan
from csrun.launch.preparing import is_preparing, option
from csrun.site import Site


def system_of(job_plan: JobPlan, site: Site) -> str | None:
    """The system that the command names, or the first that is ready; None when it needs none.

    Raises: UsageError, CsrunError when it is unknown, in another mode, or not ACTIVE
    """
    if job_plan.mode is None or is_preparing(job_plan.command):
        return None
    return system.find(site, option(job_plan.command, ("--cs_ip",)), job_plan.mode).name
