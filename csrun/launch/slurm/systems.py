"""Which CS system a job on a cluster is to get: decided before it is queued, by its command."""

from collections.abc import Iterable

from csrun import system
from csrun.launch.plan import JobPlan
from csrun.site import Site

_PREPARING = ("compile_only", "validate_only")  # modes and switches of a run that needs no system


def system_of(job_plan: JobPlan, site: Site) -> str | None:
    """The system that the command names, or the first that is ready; None when it needs none.

    Raises: UsageError, CsrunError when it is unknown, in another mode, or not ACTIVE
    """
    if job_plan.mode is None or is_preparing(job_plan.command):
        return None
    return system.find(site, option(job_plan.command, ("--cs_ip",)), job_plan.mode).name


def is_preparing(command: Iterable[str]) -> bool:
    """True for a command that only compiles or validates."""
    words = tuple(command)
    mode = option(words, ("-m", "--mode"))
    return mode in _PREPARING or any(f"--{name}" in words for name in _PREPARING)


def option(command: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The value of an option in a command's words, in either form."""
    for word, following in zip(command, (*command[1:], None), strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None
