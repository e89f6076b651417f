"""Sites that differ from the shipped one."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import yaml
from support.programs import SYSTEM

SHIPPED = Path(__file__).parents[2] / "site_configs" / "local.yaml"
STREAMING_8 = SHIPPED.with_name("streaming-8.yaml")
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


def separate_site(
    folder: Path, address_of: Callable[[int], str] = "127.0.0.{}".format, shipped: Path = SHIPPED
) -> Path:
    """Site whose nodes act as separate machines: node n at `address_of(n)`."""
    site = yaml.safe_load(shipped.read_text())
    nodes = site["nodes"]
    nodes["addresses"] = [address_of(n) for n in range(1, nodes["count"] + 1)]
    path = folder / "separate.yaml"
    path.write_text(yaml.safe_dump(site))
    return path
