"""Sites that the shipped one is not."""

from pathlib import Path

import msgspec
import yaml
from support.programs import SYSTEM

SHIPPED = Path(__file__).parents[2] / "site_configs" / "local.yaml"
SLOW_LINKS = {"clock_hz": 1e4, "multiply_adds_per_core_cycle": 4000}
#: A CS-2 that computes a thousand times as much as its links carry: replicas pay early.
SLOWLY_LINKED = msgspec.structs.replace(SYSTEM, **SLOW_LINKS)


def slowly_linked_site(folder: Path) -> Path:
    """The shipped site with such systems."""
    site = yaml.safe_load(SHIPPED.read_text())
    site["systems"] = [{**system, **SLOW_LINKS} for system in site["systems"]]
    path = folder / "slow.yaml"
    path.write_text(yaml.safe_dump(site))
    return path
