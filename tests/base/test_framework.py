"""Supported versions of frameworks, as the packaging has them."""

from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from csrun.base.framework import KERAS, TENSORFLOW, TORCH, Framework

VERSIONS = [
    "2.12.1", "2.13.0", "2.13.1+cpu", "2.14.0", "2.2.0", "2.20.1", "2.21.0", "2.22.0", "2.130.0",
    "3.9.1", "3.11.3", "3.12.0", "3.13.2", "3.20.0", "3.99.1", "3.100.0", "4.0.0", "30.1.0",
]  # fmt: skip


@pytest.mark.parametrize("framework", [TORCH, KERAS, TENSORFLOW])
def test_versions_are_those_of_the_packaging(framework: Framework) -> None:
    packaging = ConfigParser()
    packaging.read(Path(__file__).parents[2] / "setup.cfg")
    lines = packaging["options.extras_require"][framework.package].split()
    requirement = Requirement(lines[0])
    wanted = [version for version in VERSIONS if requirement.specifier.contains(version)]
    assert wanted
    assert [version for version in VERSIONS if framework.supports(version)] == wanted
    assert not framework.supports("of unknown version")
    assert framework.install == "pip install " + " ".join(f"'{line}'" for line in lines)
