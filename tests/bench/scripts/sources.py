"""Sources of the scripts: packages in a virtual environment, and checkouts of repositories.

Packages are installed into `CACHE/venv`, which sees the packages of the calling interpreter, so
that PyTorch is not installed twice. Repositories are read from the folder that CSRUN_SCRIPTS names,
which has one checkout or bare clone OWNER+NAME each, else cloned from GitHub into `CACHE`.
"""

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

from case import Repository

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "csrun-bench-scripts"
CHECKOUTS = os.environ.get("CSRUN_SCRIPTS")
WITHOUT_DEPENDENCIES = (
    "byol-pytorch",
    "denoising-diffusion-pytorch",
    "timm",
    "vit-pytorch",
)  # they need torchvision, which would bring another torch
CLONE_LIMIT_S = 120


class NotAvailableError(Exception):
    """A source that this machine cannot reach."""


def packages_folder() -> Path:
    """Folder of the installed packages, for PYTHONPATH."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return CACHE / "venv" / "lib" / version / "site-packages"


def install(requirement: str) -> None:
    """Install a package of PyPI unless the cache has it. Raises NotAvailableError."""
    stamp = CACHE / "installed" / requirement
    if stamp.exists():
        return
    python = CACHE / "venv" / "bin" / "python"
    if not python.exists():
        venv.create(CACHE / "venv", with_pip=True)
        (packages_folder() / "caller.pth").write_text("\n".join(site.getsitepackages()))
    options = ["--no-deps"] if requirement in WITHOUT_DEPENDENCIES else []
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *options, requirement], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise NotAvailableError(f"{requirement}: {lines[-1]}")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.touch()


def read(repository: Repository, path: str) -> bytes:
    """Bytes of a file of the repository's newest commit. Raises NotAvailableError."""
    git = clone_of(repository)
    if not is_git(git):
        return (git / path).read_bytes()
    command = ["git", "-C", str(git), "show", f"HEAD:{path}"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise NotAvailableError(f"{repository.name}: {done.stderr.decode().strip()}")
    return done.stdout


def clone_of(repository: Repository) -> Path:
    """Checkout, bare clone or plain folder of a repository."""
    folder = repository.name.replace("/", "+")
    if CHECKOUTS:
        given = Path(CHECKOUTS) / folder
        for path in (given / "repo", given):
            if path.is_dir():
                return path
        raise NotAvailableError(f"{repository.name}: CSRUN_SCRIPTS has no folder {folder}")
    cached = CACHE / folder
    if not cached.exists():
        url = f"https://github.com/{repository.name}"
        command = ["git", "clone", "--quiet", "--depth", "1", url, str(cached)]
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        try:
            subprocess.run(
                command, check=True, capture_output=True, timeout=CLONE_LIMIT_S, env=environment
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise NotAvailableError(f"{repository.name}: git clone failed") from error
    return cached


def is_git(folder: Path) -> bool:
    return (folder / ".git").exists() or (folder / "HEAD").exists()
