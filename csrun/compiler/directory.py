"""The compile directory `tfcs_<checksum>`: whole or not there at all, reused when it is."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from csrun.compiler.options import CompileOptions
from csrun.executable.executable import PLAN_FILE
from csrun.version import VERSION

CHECKSUM_DIGITS = 16


def checksum_of(canonical_ir: str, options: CompileOptions) -> str:
    """The name of a compile: the canonical IR, the options with the system's geometry, our version.

    The system's name and address do not count: equal systems share artifacts.
    """
    plain = msgspec.to_builtins(options)
    if options.system is not None:
        plain["system"] = {k: v for k, v in plain["system"].items() if k not in _IDENTITY}
    digest = hashlib.sha256()
    for part in (VERSION, canonical_ir, msgspec.json.encode(plain, order="sorted").decode()):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:CHECKSUM_DIGITS]


_IDENTITY = ("name", "address", "mode")


def path_of(root: Path, checksum: str) -> Path:
    """Where the compile of this checksum lies."""
    return root / f"tfcs_{checksum}"


def is_complete(directory: Path) -> bool:
    """Whether a compile lies there."""
    return (directory / PLAN_FILE).exists()


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write all files of a compile, or find that another process has just done so."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        temporary.chmod(0o755)
        for name, text in files.items():
            (temporary / name).write_text(text)
        _rename(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(temporary: Path, directory: Path) -> None:
    try:
        os.rename(temporary, directory)
    except OSError:
        if is_complete(directory):
            return  # another compiler of the same thing won; its artifacts are as good
        shutil.rmtree(directory)  # what is left of a directory that lost its plan
        os.rename(temporary, directory)
