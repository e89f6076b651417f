"""Slurm options of a job: the site file's, overridden by its roles', then by the command line's.

There are three tables: options of every component of a job, options of the first component, which
stand for the whole job, and options that csrun sets itself. Other options are refused, because it
is unknown which components need them.

Source: srun(1), sbatch(1); heterogeneous jobs: an option that is not repeated applies to the first
component
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from csrun.base.errors import UsageError
from csrun.context import Role
from csrun.site import Site, SlurmOptionValues

EVERY = frozenset(
    {"account", "constraint", "mem", "mem-per-cpu", "partition", "qos", "reservation", "wckey"}
)
FIRST = frozenset(
    {"begin", "comment", "deadline", "dependency", "licenses", "mail-type", "mail-user", "nice",
     "no-requeue", "requeue"}
)  # fmt: skip
OF_SBATCH = frozenset({"no-requeue", "requeue"})  # srun does not have these
_TASKS = "use --tasks-per-node and --total-nodes instead"
REFUSED = {
    "array": "use csrun_wse's --array instead",
    "cpus-per-task": "use csrun_wse's --cpus-per-task instead",
    "distribution": "use --cyclic instead",
    "error": "use csrun_wse's --output instead",
    "exclusive": "jobs always have exclusive nodes",
    "export": "tasks inherit this shell's environment: set variables here",
    "gres": "set gres in the site file, and choose the system with --cs_ip",
    "job-name": "use csrun_wse's --job-name instead",
    "nodes": "use --total-nodes instead",
    "ntasks": _TASKS,
    "ntasks-per-core": _TASKS,
    "ntasks-per-node": _TASKS,
    "ntasks-per-socket": _TASKS,
    "output": "use csrun_wse's --output instead",
    "signal": "set grace_s in the site file",
    "tasks-per-node": _TASKS,
    "time": "use csrun_wse's --time-limit instead",
    "wrap": "pass the command to csrun_wse as its arguments",
}


@dataclass(frozen=True)
class SlurmOptions:
    """Options of a job as arguments of srun and sbatch.

    by_component: options of each component in place of `every`, if the site has options for roles.
    partitions: partitions that they name.
    """

    every: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    partitions: tuple[str | None, ...] = (None,)
    by_component: tuple[tuple[str, ...], ...] = ()


def of(
    asked: Iterable[str], site: Site, *, batch: bool, roles: Sequence[Role] = ()
) -> SlurmOptions:
    """Return the options of a job on a site.

    asked: options of the command line, each `NAME` or `NAME=VALUE`.
    roles: roles of the job's components.

    Raises: UsageError for an option that csrun does not pass on, with the reason
    """
    general = _of_site(site.slurm_options, f"site {site.name}: slurm_options")
    # The site's options are for both commands; srun would refuse those of sbatch.
    if not batch:
        general = {name: text for name, text in general.items() if name not in OF_SBATCH}
    of_roles = _of_roles(site)
    said = _of_command_line(asked, batch=batch)
    found = general | said
    plain = SlurmOptions(
        _arguments(found, EVERY), _arguments(found, FIRST), (found.get("partition"),)
    )
    if not of_roles:
        return plain
    components = [general | of_roles.get(role, {}) | said for role in roles]
    return replace(
        plain,
        partitions=tuple(each.get("partition") for each in components) or plain.partitions,
        by_component=tuple(_arguments(each, EVERY) for each in components),
    )


def _of_site(options: SlurmOptionValues, where: str) -> dict[str, str | None]:
    """Return the enabled options of a mapping in the site file."""
    found: dict[str, str | None] = {}
    for name, value in options.items():
        if value is not False:
            found[name] = None if value is True else str(value)
            _check(f"{where}.{name}", name, found[name])
    return found


def _of_roles(site: Site) -> dict[str, dict[str, str | None]]:
    found = {}
    for role, options in site.slurm_options_by_role.items():
        where = f"site {site.name}: slurm_options_by_role.{role}"
        found[str(role)] = _of_site(options, where)
        for name in options:
            if name in FIRST:
                raise UsageError(
                    f"{where}.{name}: applies to the whole job: set it in slurm_options"
                )
    return found


def _of_command_line(asked: Iterable[str], *, batch: bool) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for argument in asked:
        given, equals, text = argument.partition("=")
        name = given.removeprefix("--").replace("_", "-")
        _check(f"--slurm-option {argument}", name, text)
        if name in OF_SBATCH and not batch:
            raise UsageError(f"--slurm-option {argument}: is for batch jobs only: add --sbatch")
        found[name] = text if equals else None
    return found


def _arguments(found: dict[str, str | None], names: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        f"--{name}" if value is None else f"--{name}={value}"
        for name, value in found.items()
        if name in names
    )


def _check(where: str, name: str, value: str | None) -> None:
    if reason := REFUSED.get(name):
        raise UsageError(f"{where}: csrun sets {name} itself: {reason}")
    known = sorted(EVERY | FIRST)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
        raise UsageError(f"{where}: unknown option; {meant}")
    if value is not None and not value.isprintable():
        raise UsageError(f"{where}: must be one line of printable text, got {value!r}")
