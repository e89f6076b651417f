"""The compile directory: reused when equal, whole or not there, safe among compilers."""

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path

import msgspec
import pytest
from support.programs import SYSTEM, Network, options_of

import csrun
from csrun import nn
from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode
from csrun.cirh import print_module
from csrun.compiler import (
    STAGES,
    CompileError,
    CompileOptions,
    Watch,
    compile_directory,
    compile_model,
)
from csrun.executable import ForeignError, UnreadableError, load, manifest_of
from csrun.site import System

PRINT_CHECKSUM = """
from csrun.base.mode import ExecutionMode, RunMode
from csrun.compiler import CompileOptions, compile_directory
from csrun.site import load

wafer = load("local").systems[0]
options = CompileOptions(mode=ExecutionMode.PIPELINED, run_mode=RunMode.TRAIN, system=wafer)
print(compile_directory.checksum_of("ir", options))
"""
OPTIONS = options_of()
SMALLER = msgspec.structs.replace(SYSTEM, usable_cores=SYSTEM.usable_cores - 1)


def compiled(root: Path, network: Network | None = None, options: CompileOptions = OPTIONS):
    return compile_model((network or Network()).trace(), root, options)


def test_an_equal_compile_is_taken_from_where_it_lies(tmp_path):
    first, second = compiled(tmp_path), compiled(tmp_path)
    assert (first.cached, second.cached) == (False, True)
    assert first.executable == second.executable
    names = {path.name for path in first.executable.directory.iterdir()}
    assert {"01_trace.mlir", "compile.log", "plan.json", "program.py"} <= names
    assert [path.name for path in tmp_path.iterdir()] == [first.executable.directory.name]


def test_an_equal_compile_runs_no_pass_and_prints_one_text(tmp_path, monkeypatch):
    texts, begun = [], []

    def printed(module):
        texts.append(print_module(module))
        return texts[-1]

    for module in ("csrun.compiler.compile", "csrun.compiler.passes.run"):
        monkeypatch.setattr(f"{module}.print_module", printed)
    for _ in range(2):
        compile_model(Network().trace(), tmp_path, OPTIONS, Watch(begin=begun.append))
    assert begun == list(STAGES)
    assert len(texts) == 4  # the trace's twice; gradient, learning


@pytest.mark.parametrize(
    "change",
    [
        {"network": Network(learning_rate=0.06)},
        {"network": Network(momentum=0.8)},
        {"network": Network(optimizer=nn.Adam(0.05))},
        {"network": Network(batch=8)},
        {"network": Network(sizes=(12, 9, 7, 5))},
        {"network": Network(activation="gelu")},
        {"network": Network(dropout=0.5)},
        {"network": Network(precision="float64")},
        {"options": msgspec.structs.replace(OPTIONS, mode=ExecutionMode.WEIGHT_STREAMING)},
        {"options": msgspec.structs.replace(OPTIONS, group_bytes=1)},
        {"options": msgspec.structs.replace(OPTIONS, system=SMALLER)},
    ],
)
def test_what_changes_the_program_changes_the_checksum(tmp_path, change):
    assert (
        compiled(tmp_path).executable.directory != compiled(tmp_path, **change).executable.directory
    )


def another(value):
    """A value unlike this one, of its kind."""
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    return f"{value}0" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("name", sorted({*CompileOptions.__struct_fields__} - {"system"}))
def test_every_option_counts(name):
    changed = msgspec.structs.replace(OPTIONS, **{name: another(getattr(OPTIONS, name))})
    assert compile_directory.checksum_of("ir", changed) != compile_directory.checksum_of(
        "ir", OPTIONS
    )


@pytest.mark.parametrize("name", System.__struct_fields__)
def test_what_the_system_is_counts_and_who_it_is_does_not(name):
    system = msgspec.structs.replace(SYSTEM, **{name: another(getattr(SYSTEM, name))})
    changed = msgspec.structs.replace(OPTIONS, system=system)
    same = compile_directory.checksum_of("ir", changed) == compile_directory.checksum_of(
        "ir", OPTIONS
    )
    assert same == (name in ("name", "address", "mode"))


@pytest.fixture
def package(tmp_path):
    """A copy of csrun, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(csrun.__path__[0], tmp_path / "csrun", ignore=ignored))


def test_a_byte_of_any_source_changes_the_digest(package):
    """Of the compiler's rooms, of what they import, and of the report's page."""
    sources = [
        path
        for room in ("base", "cirh", "compiler", "executable", "site")
        for path in package.joinpath(room).rglob("*.*")
        if path.suffix not in (".pyc", ".yaml")  # a site's numbers count as options
    ]
    assert len(sources) > 80
    found = {compile_directory.digest_of_sources(package)}
    for path in sources:
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]) if before else b"#")
        found.add(compile_directory.digest_of_sources(package))
        path.write_bytes(before)
    assert len(found) == 1 + len(sources)


def test_a_source_that_comes_or_changes_its_name_changes_the_digest(package):
    digests = [compile_directory.digest_of_sources(package)]
    source = package / "compiler" / "schedule.py"
    source = source.rename(source.with_name("orders.py"))
    digests.append(compile_directory.digest_of_sources(package))
    (source.parent / "another.py").touch()
    digests.append(compile_directory.digest_of_sources(package))
    assert len({*digests}) == 3


def test_the_checksum_is_of_the_package_that_runs(package):
    def checksum():
        env = {**os.environ, "PYTHONPATH": str(package.parent)}
        run = [sys.executable, "-c", PRINT_CHECKSUM]
        return subprocess.run(run, env=env, cwd=package, capture_output=True, check=True).stdout

    first = checksum()
    assert checksum() == first
    with (package / "base" / "mode.py").open("a") as source:
        source.write("#")
    assert checksum() != first


def test_another_version_compiles_anew_beside(tmp_path, monkeypatch):
    first = compiled(tmp_path).executable
    monkeypatch.setattr(compile_directory, "VERSION", "0.0.9")
    second = compiled(tmp_path)
    assert not second.cached
    assert second.executable.directory != first.directory


@pytest.mark.parametrize("outdated", [False, True])
def test_several_compilers_of_one_thing_at_once(tmp_path, outdated):
    if outdated:
        (compiled(tmp_path).executable.directory / "plan.json").write_text("{}")
    children = []
    for _ in range(4):
        if (child := os.fork()) == 0:
            status = 1
            try:
                compiled(tmp_path)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    (only,) = tmp_path.iterdir()
    assert load(only).plan.checksum == only.name.removeprefix("tfcs_")


def test_what_a_killed_compiler_left_goes_and_what_a_living_one_writes_stays(tmp_path):
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with compile_directory._temporary(tmp_path / "tfcs_0123456789abcdef"):
            os.write(write, b"x")
            signal.pause()
    os.read(read, 1)
    (left,) = tmp_path.iterdir()
    (left / "plan.json").write_text("{")
    compiled(tmp_path)
    assert left.exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    compiled(tmp_path, Network(batch=8))
    assert not left.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_names_the_directory(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compile_directory, "create_new", full)
    with pytest.raises(CsrunError, match=r"/tfcs_\w+: the compile .* No space left on device"):
        compiled(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["plan.json", "program.py", "manifest.json"])
def test_a_flipped_bit_is_never_run(tmp_path, name):
    """`offset_bytes` with one bit more is a plan as well, of other weights."""
    executable = compiled(tmp_path).executable
    path = executable.directory / name
    content = path.read_bytes()
    for bit in random.Random(1).sample(range(8 * len(content)), 150):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with suppress(UnreadableError):
            assert load(executable.directory).program == executable.program
            assert name == "manifest.json"  # a blank that is another blank, say
    path.write_bytes(b"x" + content)
    again = compiled(tmp_path)
    assert (again.cached, again.replaced) == (False, True)
    assert again.executable == executable


def test_a_task_runs_what_the_chief_has_read(tmp_path):
    executable = compiled(tmp_path).executable
    assert load(executable.directory, executable.digest) == executable
    program = executable.directory / "program.py"
    program.write_text(executable.program + "# planted\n")
    plan = (executable.directory / "plan.json").read_text()
    planted = manifest_of({"plan.json": plan, "program.py": program.read_text()})
    (executable.directory / "manifest.json").write_text(planted)
    assert load(executable.directory).program.endswith("# planted\n")
    with pytest.raises(CsrunError, match="changed since the chief has read it"):
        load(executable.directory, executable.digest)


def without_a_field(plan: bytes) -> bytes:
    return msgspec.json.encode({k: v for k, v in msgspec.json.decode(plan).items() if k != "store"})


def with_a_field_more(plan: bytes) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(plan), "tiles": 4})


@pytest.mark.parametrize(
    "damage",
    [without_a_field, with_a_field_more, lambda plan: plan[:-200], lambda plan: b"\xff" + plan],
)
def test_a_plan_of_another_version_is_compiled_again(tmp_path, damage):
    executable = compiled(tmp_path).executable
    path = executable.directory / "plan.json"
    path.write_bytes(damage(path.read_bytes()))
    again = compiled(tmp_path)
    assert (again.cached, again.replaced) == (False, True)
    assert again.executable == executable
    assert compiled(tmp_path).cached


@pytest.mark.parametrize("name", ["plan.json", "program.py", "manifest.json"])
def test_a_directory_that_lost_a_file_is_compiled_again(tmp_path, name):
    executable = compiled(tmp_path).executable
    (executable.directory / name).unlink()
    again = compiled(tmp_path)
    assert (again.cached, again.replaced) == (False, True)
    assert again.executable == executable


@pytest.mark.parametrize(
    ("mode", "minibatches", "cores", "remedy"),
    [
        (ExecutionMode.PIPELINED, 1, 190, r"use weight streaming \(\S+ with \S+\) or lower"),
        (ExecutionMode.PIPELINED, 4, 190, r"use weight streaming \(\S+ with \S+\) or lower"),
        (ExecutionMode.WEIGHT_STREAMING, 1, 100, "lower"),
    ],
)
def test_a_plan_larger_than_the_wafer_names_layer_bytes_and_the_batch_that_fits(
    tmp_path, mode, minibatches, cores, remedy
):
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=cores)
    options = options_of(mode, system=small, minibatches_in_flight=minibatches)

    def compiled_in(batch: int) -> int:
        network = Network((12, 64, 9, 5), batch // minibatches)
        return compiled(tmp_path, network, options).executable.plan.arena_bytes

    with pytest.raises(CompileError, match=r"layer dense needs [\d,]+ bytes of") as caught:
        compiled_in(512)
    there = re.search(
        rf"of ([\d,]+) on .* has ([\d,]+): {remedy} batch_size to ", str(caught.value)
    )
    assert there is not None
    needed, has = (int(number.replace(",", "")) for number in there.groups())
    assert needed > has == cores * 1024
    fits = int(str(caught.value).rpartition(" ")[2])
    assert 0 < fits < 512
    assert compiled_in(fits) <= has
    with pytest.raises(CompileError, match=f"{remedy} batch_size to {fits}$"):
        compiled_in(fits + minibatches)


@pytest.mark.parametrize(
    ("mode", "copies", "remedy"),
    [
        (ExecutionMode.PIPELINED, 3, r"use weight streaming \(csrun_wse with python-ws\)"),
        (ExecutionMode.WEIGHT_STREAMING, 1, "give the layer fewer units, or use a larger system"),
    ],
)
def test_weights_larger_than_the_wafer_name_their_layer_and_what_helps(
    tmp_path, mode, copies, remedy
):
    """Kernel and bias; in a pipeline with gradients and momentum. Then buffers for one sample."""
    network = Network(sizes=(12, 7, 4000, 5), batch=1)
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=100)
    options = msgspec.structs.replace(OPTIONS, system=small, mode=mode)
    weights = 4 * (7 + 1) * 4000
    buffers = 4 * 4000 + (4000 + 32) + 64  # output, its mask of bytes, the input's gradient
    needed = f"{copies * weights + buffers:,}"
    with pytest.raises(CompileError, match=rf"^layer dense_1 needs {needed} bytes .*: {remedy}$"):
        compiled(tmp_path, network, options)


@pytest.fixture
def private(tmp_path):
    return tmp_path / "private"


def compiled_apart(tmp_path, private):
    """A compile into a model_dir, with a folder for what others may not touch."""
    return compile_model(Network().trace(), tmp_path / "model_dir", OPTIONS, private=private)


def test_under_umask_002_a_compile_is_ours_alone_and_reused(tmp_path, private):
    before = os.umask(0o002)
    try:
        first, again = compiled_apart(tmp_path, private), compiled_apart(tmp_path, private)
    finally:
        os.umask(before)
    (tmp_path / "model_dir").chmod(0o775)  # as with user-private groups
    assert not first.foreign
    assert again.cached
    assert {path.stat().st_mode & 0o777 for path in again.executable.directory.iterdir()} == {0o644}
    assert not private.exists()


@pytest.mark.parametrize("name", ["", "program.py", "plan.json", "manifest.json"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_not_run(tmp_path, private, name, mode):
    directory = compiled_apart(tmp_path, private).executable.directory
    path = directory / name
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(ForeignError, match="or others may write it: a program that lies there"):
        load(directory)
    first, again = compiled_apart(tmp_path, private), compiled_apart(tmp_path, private)
    assert (first.cached, first.foreign) == (False, True)
    assert (again.cached, again.foreign) == (True, True)
    assert again.executable.directory.parent == private
    assert private.stat().st_mode & 0o777 == 0o700


def test_a_private_compile_takes_the_place_of_a_foreign_one_alone(tmp_path, private):
    compiled_apart(tmp_path, private).executable.directory.chmod(0o777)
    assert compiled_apart(tmp_path, private).foreign
    assert list(private.iterdir())
    elsewhere = compile_model(Network().trace(), tmp_path / "own", OPTIONS, private=private)
    assert not elsewhere.foreign
    assert elsewhere.executable.directory.parent == tmp_path / "own"


def test_where_all_files_seem_anothers_a_model_is_compiled_once(tmp_path, private, monkeypatch):
    """A foreign bind mount, or an NFS server that squashes: fstat tells another owner."""
    fstat = os.fstat
    model_dir = str(tmp_path / "model_dir")

    def squashed(descriptor):
        found = list(fstat(descriptor))
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(model_dir):
            found[4] = 65534
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", squashed)
    first, again = compiled_apart(tmp_path, private), compiled_apart(tmp_path, private)
    assert (first.cached, first.foreign, again.cached) == (False, True, True)
    assert str(first.executable.directory).startswith(model_dir)  # for people, and for all tasks
    assert load(first.executable.directory, first.executable.digest) == first.executable
    assert again.executable.program == first.executable.program


def test_a_planted_compile_is_neither_run_nor_removed(tmp_path, private):
    directory = compiled_apart(tmp_path, private).executable.directory
    program = directory / "program.py"
    program.write_text(program.read_text() + "raise SystemExit('planted')\n")
    files = {n: (directory / n).read_text() for n in ("plan.json", "program.py")}
    (directory / "manifest.json").write_text(manifest_of(files))
    directory.chmod(0o777)
    found = compiled_apart(tmp_path, private)
    assert found.foreign
    assert "planted" not in found.executable.program
    assert found.executable.directory.parent == private
    assert program.exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_part_of_a_compile(tmp_path, make):
    directory = compiled(tmp_path).executable.directory
    (directory / "program.py").unlink()
    make(directory / "program.py")
    with pytest.raises(UnreadableError, match="not a regular file"):
        load(directory)


def test_a_link_to_a_compile_is_none(tmp_path, private):
    directory = compiled_apart(tmp_path, private).executable.directory
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnreadableError):
        load(directory)
    found = compiled_apart(tmp_path, private)
    assert (found.cached, found.executable.directory) == (False, directory)
    assert not directory.is_symlink()
    assert list((tmp_path / "elsewhere").iterdir())
