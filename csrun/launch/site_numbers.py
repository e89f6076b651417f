"""Summary numbers of a site."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from csrun.base.version import VERSION
from csrun.launch.backend import Backend
from csrun.site import Site


class SiteNumbers(msgspec.Struct, frozen=True):
    """Numbers of systems, nodes and jobs of a site by state; version: csrun's."""

    site: str
    scheduler: str
    version: str
    systems: int
    systems_available: int
    systems_held: int
    modes: dict[str, int]
    nodes: dict[str, int]
    jobs: dict[str, int]

    def details(self) -> Iterator[tuple[str, str]]:
        """Numbers for display, by name."""
        yield "site", self.site
        yield "scheduler", self.scheduler
        yield "version", self.version
        states = f"{self.systems_available} available, {self.systems_held} held by jobs"
        yield "systems", f"{self.systems}: {states}"
        yield "modes", _counted(self.modes)
        yield "nodes", f"{sum(self.nodes.values())}: {_counted(self.nodes)}"
        yield "jobs", _counted(self.jobs) or "none pending or running"


def cluster_of(site: Site, backend: Backend) -> SiteNumbers:
    """Return the current numbers of a site.

    Raises: as the methods of `Backend`
    """
    systems = backend.systems()
    active = [job for job in backend.jobs() if job.ended is None]
    return SiteNumbers(
        site.name,
        site.scheduler,
        VERSION,
        len(systems),
        sum(not system.unavailable for system in systems),
        sum(system.job is not None for system in systems),
        dict(Counter(str(system.mode) for system in systems)),
        dict(Counter(str(node.state) for node in backend.nodes())),
        dict(Counter(str(job.state) for job in active)),
    )


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
