"""The compile directory: reused when equal, whole or not there, safe among compilers."""

import errno
import os
import signal
from pathlib import Path

import msgspec
import pytest
from support.programs import SYSTEM, Network, options_of

from csrun.compiler import CompileError, CompileOptions, compile_model, directory
from csrun.errors import CsrunError
from csrun.executable import load
from csrun.mode import ExecutionMode

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


@pytest.mark.parametrize(
    "change",
    [
        {"network": Network(learning_rate=0.06)},
        {"network": Network(batch=8)},
        {"options": msgspec.structs.replace(OPTIONS, mode=ExecutionMode.WEIGHT_STREAMING)},
        {"options": msgspec.structs.replace(OPTIONS, group_bytes=1)},
        {"options": msgspec.structs.replace(OPTIONS, system=SMALLER)},
    ],
)
def test_what_changes_the_program_changes_the_checksum(tmp_path, change):
    assert (
        compiled(tmp_path).executable.directory != compiled(tmp_path, **change).executable.directory
    )


def test_another_version_compiles_anew_beside(tmp_path, monkeypatch):
    first = compiled(tmp_path).executable
    monkeypatch.setattr(directory, "VERSION", "0.0.9")
    second = compiled(tmp_path)
    assert not second.cached
    assert second.executable.directory != first.directory


def test_equal_systems_share_artifacts_whatever_their_names(tmp_path):
    renamed = msgspec.structs.replace(SYSTEM, name="other", address="127.0.0.9")
    sums = [
        directory.checksum_of("ir", msgspec.structs.replace(OPTIONS, system=s))
        for s in (SYSTEM, renamed, SMALLER)
    ]
    assert sums[0] == sums[1] != sums[2]


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
        with directory._temporary(tmp_path / "tfcs_0123456789abcdef"):
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

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(CsrunError, match=r"/tfcs_\w+: the compile .* No space left on device"):
        compiled(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_changed_program_is_refused_by_name(tmp_path):
    executable = compiled(tmp_path).executable
    path = executable.directory / "program.py"
    path.write_text(path.read_text() + "# edited\n")
    with pytest.raises(CsrunError, match=r"program\.py: not the program that was compiled"):
        compiled(tmp_path)


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


@pytest.mark.parametrize("name", ["plan.json", "program.py"])
def test_a_directory_that_lost_a_file_is_compiled_again(tmp_path, name):
    executable = compiled(tmp_path).executable
    (executable.directory / name).unlink()
    again = compiled(tmp_path)
    assert (again.cached, again.replaced) == (False, True)
    assert again.executable == executable


def test_a_plan_larger_than_the_wafer_names_layer_bytes_and_the_batch_that_fits(tmp_path):
    network = Network(sizes=(12, 64, 9, 5), batch=256)
    need = compiled(tmp_path, network).executable.plan.arena_bytes
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=need // 1024 - 20)
    options = msgspec.structs.replace(OPTIONS, system=small)
    with pytest.raises(CompileError, match=r"layer dense\S* needs [\d,]+ bytes of") as caught:
        compiled(tmp_path, network, options)
    fits = int(str(caught.value).rpartition("lower batch_size to ")[2])
    assert 0 < fits < 256
    for batch, good in ((fits, True), (256, False)):
        plan = compiled(tmp_path, Network(network.sizes, batch)).executable.plan
        assert (plan.arena_bytes <= small.sram_bytes) is good


@pytest.mark.parametrize(
    ("mode", "remedy"),
    [
        (ExecutionMode.PIPELINED, r"use weight streaming \(csrun_wse with python-ws\)"),
        (ExecutionMode.WEIGHT_STREAMING, "give the layer fewer units, or use a larger system"),
    ],
)
def test_weights_larger_than_the_wafer_name_their_layer_and_what_helps(tmp_path, mode, remedy):
    network = Network(sizes=(12, 7, 4000, 5), batch=1)
    small = msgspec.structs.replace(SYSTEM, sram_kb_per_core=1, usable_cores=100)
    options = msgspec.structs.replace(OPTIONS, system=small, mode=mode)
    with pytest.raises(CompileError, match=rf"^layer dense_1 needs 128,000 bytes .*: {remedy}$"):
        compiled(tmp_path, network, options)
