"""setup.cfg agrees with the tree: commands, files that are no code, and what a wheel holds."""

import importlib
import os
import re
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from csrun.cli.init import PATTERNS
from csrun.pytorch.torch_version import TESTED

CHECKOUT = Path(__file__).parents[1]
SETUP = ConfigParser()
SETUP.read(CHECKOUT / "setup.cfg")
COMMANDS = SETUP["options.entry_points"]["console_scripts"].split("\n")[1:]
DATA = SETUP["options.package_data"]


def folder_of(package: str) -> Path:
    """Where a package lies in the checkout."""
    return CHECKOUT.joinpath(*package.split("."))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_console_command_has_its_function_and_its_module(line: str) -> None:
    command, module, function = re.fullmatch(r"(\S+) = (\S+):(\w+)", line).groups()
    assert callable(getattr(importlib.import_module(module), function))
    assert callable(importlib.import_module(f"csrun.cli.{command.replace('-', '_')}").main)


@pytest.mark.parametrize("package", DATA)
def test_files_that_are_no_code_lie_where_the_packaging_says(package: str) -> None:
    assert importlib.import_module(package).__path__ == [str(folder_of(package))]
    for pattern in DATA[package].split():
        assert list(folder_of(package).glob(pattern)), pattern


def test_the_wheel_has_the_files_that_init_copies() -> None:
    packaged = DATA["csrun.cli"].split()
    assert packaged == [f"templates/*/{pattern}" for pattern in PATTERNS]


def test_what_is_packaged_beside_csrun_is_there_and_pytorch_an_extra() -> None:
    top = {name.split(".")[0] for name in SETUP["options.packages.find"]["include"].split()}
    assert top == {"cerebras", *(path.parent.name for path in CHECKOUT.glob("c*/__init__.py"))}
    assert SETUP["options.extras_require"]["torch"].split() == [f"torch=={TESTED}.*"]
    assert "torch" not in SETUP["options"]["install_requires"]


def test_the_license_is_the_one_that_the_packaging_names() -> None:
    assert SETUP["metadata"]["license"] == "Apache-2.0"
    text = (CHECKOUT / SETUP["metadata"]["license_files"]).read_text()
    head, *_, end = (line.strip() for line in text.splitlines() if line.strip())
    assert (head, end) == ("Apache License", "limitations under the License.")
    assert "Version 2.0, January 2004" in text


@pytest.mark.slow
def test_the_wheel_holds_the_license_the_sites_and_the_pages_of_the_reports(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in (
        "cerebras",
        "cerebras_torch",
        "csrun",
        "reference_models",
        "site_configs",
        "setup.cfg",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):
        subprocess.run(["cp", "-r", CHECKOUT / name, source], check=True)
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "-w", tmp_path, source], check=True)
    (built,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(built).namelist())
    files = [
        path
        for package, patterns in DATA.items()
        for pattern in patterns.split()
        for path in folder_of(package).glob(pattern)
        if path.is_file()  # pages are cached in a folder beside them
    ]
    assert {str(path.relative_to(CHECKOUT)) for path in files} <= held
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in held)
    assert {"cerebras_torch/__init__.py", "csrun/pytorch/__init__.py"} <= held
    assert "cerebras/framework/torch/__init__.py" in held
    assert "cerebras/__init__.py" not in held, "other packages may have a part of the namespace"
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(built).extractall(unpacked)
    for template in ("image", "fc_mnist"):
        init = "import csrun.cli.csrun as c; assert c.__file__.startswith(%r); c.main()"
        command = [
            sys.executable,
            "-c",
            init % str(unpacked),
            "init",
            template,
            tmp_path / template,
        ]
        subprocess.run(command, check=True, cwd=unpacked)  # `-c` imports from there first
        assert (tmp_path / template / "run.py").is_file()
    train = [sys.executable, "run.py", "--max_steps", "3"]  # on the digits of the wheel
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    subprocess.run(train, check=True, cwd=tmp_path / "fc_mnist", env=environment)
    assert (tmp_path / "fc_mnist" / "model_dir" / "model-ckpt-3.safetensors").is_file()
