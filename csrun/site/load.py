"""Load a site by its name or file, and check it."""

import os
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from csrun.base import typed_yaml
from csrun.base.errors import UsageError
from csrun.site.site import Scheduler, Site, System

DEFAULT_SITE = "local"
SITE_VARIABLE = "CSRUN_SITE"
SHIPPED = Path(__file__).parent / "configs"


def load(name_or_path: str | None = None) -> Site:
    """Read a site: a shipped one by name, or a file by path; None selects CSRUN_SITE, else `local`.

    Raises: UsageError, with the path of the key, the rule and the value, if the file is invalid
    """
    from csrun.base import plain_yaml  # tasks of a cluster start faster without the YAML parser

    path = _locate(resolve(name_or_path))
    site = typed_yaml.convert(plain_yaml.read(path), Site, path)
    _refuse_duplicates(site, path)
    _refuse_impossible_defaults(site, path)
    _check_node_addresses(site, path)
    _refuse_slurm_keys(site, path)
    return site


def resolve(name_or_path: str | None = None) -> str:
    """Return a name or absolute path with which any process loads the same site."""
    wanted = name_or_path or os.environ.get(SITE_VARIABLE) or DEFAULT_SITE
    return wanted if wanted in shipped_sites() else str(Path(wanted).absolute())


def shipped_sites() -> tuple[str, ...]:
    """Return the names of the shipped sites."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def _locate(site: str) -> Path:
    if site in shipped_sites():
        return SHIPPED / f"{site}.yaml"
    path = Path(site)
    if os.path.isfile(path):
        return path
    known = ", ".join(shipped_sites())
    raise UsageError(
        f"site {path.name!r} ({path}) is neither a shipped site ({known}) nor a file; "
        f"pass one of them with --site or {SITE_VARIABLE}"
    )


def _refuse_duplicates(site: Site, path: Path) -> None:
    identities: dict[str, Callable[[System], str]] = {
        "name": lambda system: system.name,
        "address": lambda system: system.endpoint,
    }
    for key, identity in identities.items():
        seen: dict[str, int] = {}
        for index, system in enumerate(site.systems):
            first = seen.setdefault(identity(system), index)
            if first != index:
                raise UsageError(
                    f"{path}: systems[{index}].{key} must differ from systems[{first}].{key},"
                    f" got {getattr(system, key)!r} and {getattr(site.systems[first], key)!r}"
                )


def _refuse_impossible_defaults(site: Site, path: Path) -> None:
    if site.defaults.nodes > site.nodes.count:
        raise UsageError(
            f"{path}: defaults.nodes must be at most nodes.count, {site.nodes.count},"
            f" got {site.defaults.nodes}"
        )
    cpus = site.defaults.tasks_per_node * site.defaults.cpus_per_task
    if cpus > site.nodes.cpus:
        raise UsageError(
            f"{path}: defaults.tasks_per_node x defaults.cpus_per_task must be at most nodes.cpus,"
            f" {site.nodes.cpus}, got {cpus}"
        )


def _refuse_slurm_keys(site: Site, path: Path) -> None:
    for key in ("slurm_options", "slurm_options_by_role", "prolog"):
        if getattr(site, key) and site.scheduler is not Scheduler.SLURM:
            raise UsageError(
                f"{path}: {key} must be omitted with scheduler {site.scheduler}:"
                f" it applies to {Scheduler.SLURM} only"
            )


def _check_node_addresses(site: Site, path: Path) -> None:
    given = len(site.nodes.addresses)
    if given not in (0, site.nodes.count):
        raise UsageError(
            f"{path}: nodes.addresses must have one address per node, {site.nodes.count}, or none,"
            f" got {given}"
        )
    for index, address in enumerate(site.nodes.addresses):
        try:
            ip_address(address)
        except ValueError as error:
            raise UsageError(
                f"{path}: nodes.addresses[{index}] must be an IP address, got {address!r}"
            ) from error
