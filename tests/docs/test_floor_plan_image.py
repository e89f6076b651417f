"""The README's picture is the floor plan of a compile, with a correct caption."""

import re
from pathlib import Path

import pytest
from support.floor_plan_image import IMAGE, compiled_report, image_of
from support.pages import README


@pytest.mark.usefixtures("state")
def test_the_picture_is_the_floor_plan_of_a_compile(tmp_path: Path) -> None:
    remedy = "run PYTHONPATH=tests python -m support.floor_plan_image"
    assert image_of(compiled_report(tmp_path)) == IMAGE.read_text(), remedy


def test_the_caption_has_the_share_of_the_picture() -> None:
    found = re.search(r"`(\S+)` gets (\d+) %", README.read_text())
    assert found
    (share,) = re.findall(rf"{found[1]}: .*?, ([\d.]+)% of", IMAGE.read_text())
    assert round(float(share)) == int(found[2])
