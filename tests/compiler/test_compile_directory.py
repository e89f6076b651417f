"""Compile directory: reused when equal, complete or absent, safe with concurrent compilers."""

import errno
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from support.accounts import OTHER, as_account, needs_two_accounts
from support.programs import Network, options_of

from csrun.base.errors import CsrunError
from csrun.cirh import print_module
from csrun.compiler import (
    STAGES,
    CompileOptions,
    PassObserver,
    compile_directory,
    compile_model,
)
from csrun.executable import ForeignError, UnreadableError, load, manifest_of

OPTIONS = options_of()


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

    for module in ("csrun.compiler.compile", "csrun.compiler.passes.pass_manager"):
        monkeypatch.setattr(f"{module}.print_module", printed)
    for _ in range(2):
        compile_model(Network().trace(), tmp_path, OPTIONS, PassObserver(begin=begun.append))
    assert begun == list(STAGES)
    assert len(texts) == 5  # the trace's twice; gradient, learning, splitting


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
    """`offset_bytes` with one bit flipped is still a valid plan, with the wrong weights."""
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
    with pytest.raises(CsrunError, match="changed after the chief read it"):
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


@pytest.fixture
def private(tmp_path):
    return tmp_path / "private"


def compiled_apart(tmp_path, private):
    """Compile into a model_dir, with a private folder that other accounts cannot write."""
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


@needs_two_accounts
def test_a_compile_is_written_under_umask_777(own_folder):
    own_folder.chmod(0o777)
    directory = Path("model_dir", "tfcs_1")

    def write():
        os.umask(0o777)
        compile_directory.write(directory, {"plan.json": "{}"})
        return (directory / "plan.json").read_text()

    assert as_account(OTHER, write) == "{}"
    assert os.listdir("model_dir") == ["tfcs_1"]


@pytest.mark.parametrize("name", ["", "program.py", "plan.json", "manifest.json"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_not_run(tmp_path, private, name, mode):
    directory = compiled_apart(tmp_path, private).executable.directory
    path = directory / name
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(ForeignError, match="owned or writable by another account, not run"):
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


def test_a_squashed_owner_costs_one_compile(tmp_path, private, monkeypatch):
    """As on a foreign bind mount or a squashing NFS server: fstat reports another owner."""
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
