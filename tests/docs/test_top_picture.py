"""The picture of docs/top.md matches what csrun top draws."""

import re
import xml.etree.ElementTree as ElementTree

from support.top_picture import IMAGE, MOST_BYTES

PARTS = (
    "csrun top", "SYSTEM", "POWER", "WAITING", "RUNNING", "PENDING", "waits for 15 of the 16 nodes",
    "step", "steps/s, ends", "GlobalRate", "loss", "compute", "first group", "RANK", "MEMORY",
    "wafer cs2-02", "up/down: job",
)  # fmt: skip


def test_the_picture_shows_each_part_of_the_screen() -> None:
    """Contents differ from run to run: scripts/top_picture draws it again."""
    text = IMAGE.read_text()
    assert len(text) < MOST_BYTES
    shown = " ".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
    assert [part for part in PARTS if part not in shown] == []


def test_the_picture_loads_nothing_from_elsewhere() -> None:
    links = set(re.findall(r"https?://[^\"' )<]+", IMAGE.read_text()))
    assert links <= {"http://www.w3.org/2000/svg", "https://www.textualize.io"}
