"""What every test is held to: no process and no file descriptor is left behind.

What Hypothesis draws is the same in each run, and no pause of the machine fails it.
"""

import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

MODELS = Path(__file__).parents[1] / "reference_models"

SETTLE_S = 15.0  # time for a test's processes and files to disappear, also on a loaded machine
OPENED_ONCE = ("/dev/urandom", "/dev/null", ".so", "/proc/", "anon_inode:[eventpoll]")

# Where bytecode is not written (many images of containers say so), each process that a test starts
# would compile csrun's sources anew: a third of the CPU time of a small job.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.disable()  # until the tests are collected: it takes a tenth of the imports, and finds nothing
os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # trio's takes longer to import than Hypothesis

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests' children need Ctrl-C
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure() -> None:
    """Let what Hypothesis draws be the same in each run, without limits of time."""
    from hypothesis import HealthCheck, settings  # its bytecode is written, see above

    settings.register_profile(
        "csrun", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("csrun")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking through the tests and all they have imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def _has_children() -> bool:
    """Return whether this process has any; psutil looks through all of the machine's for that."""
    files = list(Path("/proc/self/task").glob("*/children"))  # none on some kernels
    try:
        return not files or any(file.read_text() for file in files)
    except OSError:  # a thread that has ended
        return True


def _processes() -> set[tuple[int, float]]:
    found: set[tuple[int, float]] = set()
    if not _has_children():
        return found
    for process in psutil.Process().children(recursive=True):
        try:
            found.add((process.pid, process.create_time()))
        except psutil.NoSuchProcess:
            continue
    return found


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not target.startswith(OPENED_ONCE) and not target.endswith(OPENED_ONCE):
            found[int(name)] = target
    return found


def _new(before: tuple[set[tuple[int, float]], dict[int, str]]) -> tuple[list[str], list[str]]:
    processes = [f"process {pid}" for pid, _ in _processes() - before[0]]
    descriptors = [
        f"descriptor {fd}: {target}"
        for fd, target in _descriptors().items()
        if before[1].get(fd) != target
    ]
    return processes, descriptors


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    """Count processes and descriptors before and after; what is closing gets a moment."""
    before = (_processes(), _descriptors())
    yield
    deadline_s = time.monotonic() + SETTLE_S
    left, looks = _new(before), 0
    while any(left) and time.monotonic() < deadline_s:
        looks += 1
        gc.collect(1 if looks % 10 else 2)  # what a test leaves is mostly young; all takes 0.4 s
        time.sleep(0.02)
        left = _new(before)
    assert not any(left), f"left behind: {left}"


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, in what they start, too; one for all of scripts/test."""
    folder = os.environ.get("TESTS_CACHE_DIR") or tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CSRUN_CACHE_DIR", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Skip fsync, which takes a third of a small training's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles without what nobody reads there: the page, the texts of passes and of kernels."""
    monkeypatch.setattr("csrun.compiler.compile_files.render", lambda report: "")
    for module in ("compile", "emit.kernel_functions"):
        monkeypatch.setattr(f"csrun.compiler.{module}.print_kernels", lambda kernels: "")
    monkeypatch.setattr("csrun.compiler.passes.pass_manager.print_module", lambda module: "")


@pytest.fixture
def quick_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code without LLVM's optimizations, built in an eighth of the time: the same bits."""
    monkeypatch.setattr("csrun.executable.machine_code.SPEED_LEVEL", 0)


@pytest.fixture(scope="session")
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def shared_programs(
    monkeypatch: pytest.MonkeyPatch, _programs: Path, no_texts: None, quick_builds: None
) -> None:
    """Equal networks of `support` are compiled once a session, in one folder."""

    def shared(module: Any, root: Path, *options: Any) -> Any:
        return compile_model(module, _programs, *options)

    from csrun.compiler import compile_model  # not by the tests that compile nothing

    for name in ("programs", "steps", "systems"):
        monkeypatch.setattr(f"support.{name}.compile_model", shared)


@pytest.fixture
def kept_compiles(
    monkeypatch: pytest.MonkeyPatch, _programs: Path, no_texts: None, quick_builds: None
) -> None:
    """A run whose program an earlier test has compiled gets a copy of it into its model_dir."""
    from csrun.cirh import print_module  # not by the tests that compile nothing
    from csrun.compiler import compile_directory, compile_model

    def compiled(module: Any, root: Path, options: Any, *others: Any) -> Any:
        checksum = compile_directory.checksum_of(print_module(module), options)
        target, kept = (compile_directory.path_of(f, checksum) for f in (root, _programs))
        is_copied = kept.exists() and not target.exists()
        if is_copied:
            shutil.copytree(kept, target)
        result = compile_model(module, root, options, *others)
        if target.exists() and not kept.exists():
            shutil.copytree(target, kept)
        return replace(result, cached=result.cached and not is_copied)

    monkeypatch.setattr("csrun.estimator.compilation.compile_model", compiled)


@pytest.fixture
def state(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> str:
    """A state folder of the test's own."""
    folder = f"{tmp_path}/state"
    monkeypatch.setenv("CSRUN_STATE_DIR", folder)
    monkeypatch.delenv("CSRUN_SITE", raising=False)
    return folder


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[Path]:
    """A working directory of the test's own: a compile leaves a link there."""
    folder = tmp_path / "working_directory"
    folder.mkdir()
    with chdir(folder):
        yield folder


@pytest.fixture
def fc_mnist(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of fc_mnist, on the import path."""
    with _on_path(monkeypatch, "fc_mnist") as folder:
        yield folder


@pytest.fixture
def gpt2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of gpt2, on the import path."""
    with _on_path(monkeypatch, "gpt2") as folder:
        yield folder


@pytest.fixture
def gptj(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of gptj, on the import path."""
    with _on_path(monkeypatch, "gptj") as folder:
        yield folder


@pytest.fixture
def cnn_mnist(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of cnn_mnist, on the import path."""
    with _on_path(monkeypatch, "cnn_mnist") as folder:
        yield folder


@pytest.fixture
def bert(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of bert, on the import path."""
    with _on_path(monkeypatch, "bert") as folder:
        yield folder


@contextmanager
def _on_path(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Path]:
    """A reference model, whose modules import each other by bare names."""
    folder = MODELS / name
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)
