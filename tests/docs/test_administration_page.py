"""docs/administration.md: its commands run, its site keys load, its alerts have metrics."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from support.jobs import Workplace
from support.pages import CHECKOUT, blocks, section
from support.sites import SHIPPED

from csrun.launch.metrics import site_metrics
from csrun.site import load

PAGE = CHECKOUT / "docs" / "administration.md"


def site_of(folder: Path, name: str, text: str, **changes: object) -> Path:
    path = folder / name
    keys = yaml.safe_load(SHIPPED.read_text()) | changes | yaml.safe_load(text or "{}")
    path.write_text(yaml.safe_dump(keys))
    return path


def test_the_commands_run_as_they_are_printed(tmp_path: Path) -> None:
    site_of(tmp_path, "cluster.yaml", "")
    place, ran = Workplace(tmp_path), 0
    for block in blocks(PAGE.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                command, *words = shlex.split(line[2:])
                done = place.run(*words, command=command)
                assert (done.returncode, done.stderr) == (0, ""), line
                ran += 1
    assert ran >= 10
    assert (tmp_path / "csrun.prom").read_text().startswith("# HELP csrun_")


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
