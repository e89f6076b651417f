"""docs/administration.md: its site keys load, its alerts have metrics."""

import re
from pathlib import Path

import pytest
import yaml
from support.pages import CHECKOUT, blocks, section
from support.sites import SHIPPED

from csrun.launch.prometheus import site_metrics
from csrun.site import load

PAGE = CHECKOUT / "docs" / "administration.md"


def site_of(folder: Path, name: str, text: str, **changes: object) -> Path:
    path = folder / name
    keys = yaml.safe_load(SHIPPED.read_text()) | changes | yaml.safe_load(text or "{}")
    path.write_text(yaml.safe_dump(keys))
    return path


@pytest.mark.parametrize("title", ["Partitions by role", "Retention"])
def test_the_keys_are_those_of_a_site_file(title: str, tmp_path: Path) -> None:
    text = next(blocks(section(PAGE, title)))
    assert load(str(site_of(tmp_path, "site.yaml", text, scheduler="slurm")))


def test_alerts_and_table_name_metrics_that_there_are() -> None:
    text = section(PAGE, "Monitoring")
    (rules,) = (block for block in blocks(text) if block.startswith("groups:"))
    used = " ".join(rule["expr"] for rule in yaml.safe_load(rules)["groups"][0]["rules"])
    emitted = {f"csrun_{each.name}" for each in site_metrics([], [], [], {})}
    listed = set(re.findall(r"`(csrun_\w+)`", text))
    assert set(re.findall(r"csrun_\w+", used)) <= listed
    assert listed == emitted
