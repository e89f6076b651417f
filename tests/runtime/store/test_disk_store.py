"""Store on disk: bits of a store in memory, within its memory limit, and no leftover files."""

import ctypes
import errno
import gc
import mmap
import os
import re
from collections import namedtuple
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from support.programs import ArrayData, Network, TiedNetwork, options_of, system_of
from support.roles import Peers, fed_by

from csrun import nn
from csrun.base.errors import CsrunError, UsageError
from csrun.base.half_formats import BFLOAT16, FLOAT16
from csrun.base.mode import ExecutionMode, RunMode
from csrun.base.run_config import RunSettings
from csrun.compiler import compile_model
from csrun.context import Host
from csrun.executable.shards import StoreShards
from csrun.runtime.chief.clients.peers import RunPeers, RunRequest
from csrun.runtime.chief.cpu import CpuMachine
from csrun.runtime.store import backing, pages
from csrun.runtime.store.backing import StoreShare, make_store, require_disk_space
from csrun.runtime.store.pages import FilePages
from csrun.runtime.store.residency import Residency, least_bytes, store_bytes
from csrun.runtime.store.tensors import FilePort
from csrun.runtime.wire.messages import CheckpointSpace, StepOrder
from csrun.runtime.wire.rendezvous import RunFolder, memoryx_names
from csrun.runtime.wire.shared import SharedMemory

STREAMING, STEPS, SEED = ExecutionMode.WEIGHT_STREAMING, 2, 9
OPTIMIZERS = {"each": nn.AdamW(0.01), "clipped": nn.AdamW(0.01, clip_norm=0.5)}
FAILED = "disk I/O failed: Input/output error: choose another folder"
LAYER = 256  # a kernel is 256 KiB
DEEP = Network(sizes=(LAYER,) * 17 + (10,), optimizer=OPTIMIZERS["each"])


@pytest.fixture
def disk(tmp_path) -> Path:
    """Folder that is not on tmpfs."""
    for root in (tmp_path, Path(__file__).parent):
        if backing._memory_kind(root) is None:
            folder = root / "disk"
            folder.mkdir()
            yield folder
            folder.rmdir()  # which fails when something is left in it
            return
    pytest.skip("no folder on a disk")


def settings_of(folder: Path, plan, memory_bytes: int | None = None) -> RunSettings:
    """Settings of a store on that disk, with the least memory it needs."""
    memory = least_bytes(plan) if memory_bytes is None else memory_bytes
    options = {"weight_store_dir": str(folder), "weight_store_memory": memory}
    return RunSettings(seed=SEED, weight_store="disk", **options)


def run(machine):
    machine.initialize()
    done = machine.run(StepOrder(0, STEPS))
    losses = [machine.result(i, i).loss for i in range(done.done)]
    return losses, {name: np.array(array) for name, array in machine.state.items()}


def in_job(tmp_path, network, executable, settings, wire, look=lambda: None, servers=1):
    here, there = (Host(f"node{n}", f"127.0.0.{n}") for n in (1, 2))
    is_tcp = wire == "tcp"
    folder = RunFolder(tmp_path / "run", "1", b"secret", host=here if is_tcp else None)
    data = ArrayData(network.batches(STEPS))
    peers = Peers(folder, data, 2, STREAMING, there if is_tcp else None, servers=servers)
    names = memoryx_names(servers)
    request = RunRequest(executable, settings, 0, None, fed_by(2), ("cs",), 9, memoryx=names)
    said = []
    with RunPeers(folder) as cluster:
        machine = cluster.start(request, lambda: None, said.append)
        results = run(machine)
        look()
        machine.close({})
    peers.join()
    assert peers.errors == {}
    return results, said


def resident_bytes(descriptor: int) -> int:
    """Resident bytes of a file, by mincore(2)."""
    nbytes = os.fstat(descriptor).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    with mmap.mmap(descriptor, nbytes) as mapped:
        view = ctypes.c_char.from_buffer(mapped)
        pages = np.empty(-(-nbytes // mmap.PAGESIZE), np.uint8)
        assert libc.mincore(ctypes.addressof(view), nbytes, pages.ctypes.data) == 0
        del view
        gc.collect()
    return int((pages & 1).sum()) * mmap.PAGESIZE


def open_store() -> int:
    """Descriptor of the unlinked file in the store's folder."""
    for number in os.listdir("/proc/self/fd"):
        link = Path("/proc/self/fd", number)
        if link.is_symlink() and re.search(r"/disk/.*\(deleted\)$", os.readlink(link)):
            return int(number)
    raise AssertionError("no store is open")


def least_of(plan, servers: int) -> int:
    """Memory needed by the stores of this many tasks."""
    shards = StoreShards.of(plan, servers)
    return sum(least_bytes(plan, shards.own(plan, server)) for server in range(servers))


@pytest.mark.parametrize("wire", ["memory", "tcp"])
@pytest.mark.parametrize(
    ("network", "servers"),
    [
        (DEEP, 1),
        (DEEP, 3),
        (Network(sizes=(LAYER,) * 4 + (10,), optimizer=OPTIMIZERS["clipped"]), 1),
        (Network(sizes=(LAYER,) * 4 + (10,), optimizer=OPTIMIZERS["clipped"]), 2),
        (TiedNetwork((LAYER, 96, 96, 96, 96, LAYER), dropout=0.2, optimizer=OPTIMIZERS["each"]), 1),
        (replace(DEEP, storage=FLOAT16), 1),
        (Network((LAYER,) * 4 + (10,), optimizer=OPTIMIZERS["clipped"], storage=BFLOAT16), 2),
    ],
    ids=["deep", "deep, 3 tasks", "clipped", "clipped, 2 tasks", "tied", "float16", "bfloat16"],
)
def test_bits_are_those_of_a_store_in_memory(tmp_path, disk, network, servers, wire):
    """With the least memory; a killed run leaves no file."""
    executable = network.compile(tmp_path, STREAMING, 1)
    plan = executable.plan

    def look() -> None:
        assert list(disk.iterdir()) == []

    inside = CpuMachine(executable, ArrayData(network.batches(STEPS)), RunSettings(seed=SEED), 0)
    losses, state = run(inside)
    assert len(set(losses)) == STEPS
    settings = settings_of(disk, plan, least_of(plan, servers))
    (found, on_disk), said = in_job(tmp_path, network, executable, settings, wire, look, servers)
    assert found == losses
    for name, array in state.items():
        np.testing.assert_array_equal(on_disk[name], array, err_msg=name)
    where = rf"Weight store: [0-9.]+ [Mk]B on disk in {re.escape(str(disk))}, up to [0-9.]+ "
    assert any(re.match(where, line) for line in said), said


@pytest.mark.parametrize("wire", ["memory", "tcp"])
def test_all_that_makes_a_model_fit_has_the_bits_of_a_large_wafer(tmp_path, disk, wire):
    """Micro-batches, recomputation and sharded kernels, from two stores on disk."""
    sizes = (96, 384, 96, 384, 96, 384, 10)
    network = Network(sizes, batch=128, optimizer=OPTIMIZERS["clipped"], dropout=0.2)
    half, cut = replace(network, batch=64), {"micro_batches": 2, "max_group_bytes": 1 << 16}
    options = options_of(STREAMING, group_bytes=1, **cut)
    large = compile_model(half.trace(), tmp_path, options).executable
    small = system_of(large.plan.arena_bytes * 3 // 4)
    options = options_of(STREAMING, group_bytes=1, recompute=True, system=small, **cut)
    executable = compile_model(half.trace(), tmp_path, options).executable
    assert executable.plan.recomputed
    assert not large.plan.recomputed
    data, seeded = ArrayData(network.batches(STEPS)), RunSettings(seed=SEED)
    losses, state = run(CpuMachine(large, data, seeded, 0))
    settings = settings_of(disk, executable.plan, least_of(executable.plan, 2))
    (found, on_disk), _ = in_job(tmp_path, network, executable, settings, wire, servers=2)
    assert found == losses
    for name, array in state.items():
        np.testing.assert_array_equal(on_disk[name], array, err_msg=name)


def test_tasks_that_have_nothing_to_do_are_told_of(tmp_path):
    """All shards of a matrix belong to one task, for any number of groups."""
    network = TiedNetwork((30, 12, 30))
    executable = network.compile(tmp_path, STREAMING, 1, max_group_bytes=400)
    assert len(executable.plan.groups) == 4  # all of them parts of the one matrix that there is
    _, said = in_job(tmp_path, network, executable, RunSettings(seed=SEED), "memory", servers=3)
    (line,) = (line for line in said if line.startswith("Weight store: "))
    shared = "shared by 3 MemoryX tasks, 2 of them idle: there are only 1 weight group(s)"
    assert shared in line


class Everything:
    """Store settings that evict everything after each use."""

    def leaving(self, used: range) -> list[range]:
        return [used]

    def pieces(self, used: range) -> list[tuple[range, bool]]:
        return [(used, True)]


def test_pages_leave_memory_when_the_last_has_let_go(disk):
    """Written-back pages are evicted once neither of two processes has them mapped."""
    nbytes = 16 << 20
    file, whole = backing._file(disk, nbytes, [range(nbytes)]), range(nbytes)
    mine = SharedMemory.create("store", nbytes, [])
    other = SharedMemory.over(os.dup(mine.descriptor))
    own, others = (FilePages(m, os.dup(file), Everything()) for m in (mine, other))
    try:
        mine.bytes[:] = 7
        assert other.bytes.sum(dtype=int) == 7 * nbytes
        own.write_back(whole)
        own.write_back(range(0))  # waits for the lot before
        assert resident_bytes(file) > nbytes // 2
        others.unmap([whole])
        own.evict(whole)
        assert resident_bytes(file) < nbytes // 2
        assert other.bytes.sum(dtype=int) == 7 * nbytes
    finally:
        for pages, memory in ((own, mine), (others, other)):
            pages.close()
            memory.close()
        os.close(file)


def test_a_disk_that_fails_is_told_by_who_hears_of_it(tmp_path, monkeypatch):
    """Linux reports a failed write once to each open file description."""

    def failed(*_: object) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    plan = DEEP.compile(tmp_path, STREAMING, 1).plan
    residency, nbytes = Residency(plan, least_bytes(plan)), plan.store.nbytes
    whole = range(nbytes)
    libc = SimpleNamespace(sync_file_range=failed, fstatfs=lambda *_: 0, madvise=lambda *_: 0)
    monkeypatch.setattr(pages, "_libc", libc)
    file, memory = backing._file(tmp_path, nbytes, [whole]), SharedMemory.create("store", nbytes)
    own = FilePages(memory, file, residency)
    try:
        own.write_back(whole)
        with pytest.raises(CsrunError, match=FAILED):
            own.write_back(whole)
        with pytest.raises(CsrunError, match=FAILED):
            FilePort(memory.descriptor, file, residency).read(0, np.empty(nbytes, np.uint8))
    finally:
        own.close()
        memory.close()


@pytest.mark.parametrize("bound", ["least", "half", "whole"])
def test_what_stays_in_memory_is_none_of_the_disks(tmp_path, disk, bound):
    """No disk space is allocated for it, and the window of gradients is not written repeatedly."""
    executable = DEEP.compile(tmp_path, STREAMING, 1)
    plan, found = executable.plan, []
    least, whole = least_bytes(plan), plan.store.nbytes
    memory_bytes = {"least": least, "half": (least + whole) // 2, "whole": whole}[bound]

    def look() -> None:
        found.append(512 * os.fstat(open_store()).st_blocks)

    settings = settings_of(disk, plan, memory_bytes)
    in_job(tmp_path, DEEP, executable, settings, "memory", look)
    window = whole - 3 * sum(group.nbytes for group in plan.groups)
    stays = whole if bound == "whole" else window + memory_bytes - least
    assert found[0] in range(whole - stays - 8 * mmap.PAGESIZE, whole - stays + 1)


def test_weights_stay_before_optimizer_state(tmp_path):
    """By hand: groups of a kernel and its bias; the working set is 3 updates and 2 reads.

    Whole pages are evicted: the first and last page of a region may belong to its neighbours.
    """
    plan = DEEP.compile(tmp_path, STREAMING, 1).plan
    group, store = max(g.nbytes for g in plan.groups), plan.store
    window = store.nbytes - 3 * sum(g.nbytes for g in plan.groups)
    assert least_bytes(plan) == 3 * 3 * group + 2 * group + window
    room = 2 * group // mmap.PAGESIZE * mmap.PAGESIZE
    residency = Residency(plan, least_bytes(plan) + room)
    everything = range(store.nbytes)
    kept = store.nbytes - sum(map(len, residency.leaving(everything)))
    assert room + window <= kept < room + window + 3 * 2 * mmap.PAGESIZE
    assert list(residency.leaving(range(room))) == []
    around, behind = range(room - 8, room + 8), range(room, room + 8)
    assert list(residency.leaving(around)) == [behind]
    assert list(residency.pieces(around)) == [(range(room - 8, room), False), (behind, True)]
    assert list(Residency(plan, store.nbytes).leaving(everything)) == []
    with pytest.raises(CsrunError, match=f"at least {least_bytes(plan):,} bytes for this model"):
        Residency(plan, least_bytes(plan) - 1)


@pytest.mark.parametrize("is_bounded", [True, False])
def test_no_more_threads_draw_than_the_bound_has_room_for(tmp_path, disk, monkeypatch, is_bounded):
    """By hand: with AdamW eleven of the largest groups are in use, and four are drawn already."""
    asked = []
    monkeypatch.setattr(backing, "thread_count", lambda: 100)
    monkeypatch.setattr(backing, "initialize", lambda *given, **_: asked.append(given[-1]))
    plan = DEEP.compile(tmp_path, STREAMING, 1).plan
    memory_bytes = least_bytes(plan) if is_bounded else plan.store.nbytes
    store = make_store(plan, settings_of(disk, plan, memory_bytes))
    try:
        store.initialize(plan, SEED)
    finally:
        store.close()
    window = plan.store.nbytes - 3 * sum(g.nbytes for g in plan.groups)
    lots = 11 + window // (LAYER * LAYER * 4)
    assert asked == [lots - 4 if is_bounded else 100]


def test_no_room_is_said_in_bytes(tmp_path, disk):
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    space = CheckpointSpace(str(disk.parent), 6, 1 << 60)
    needed = (1 << 60) + 100
    with pytest.raises(CsrunError, match=rf"{needed:,} are needed: 100 for the weight store and "):
        require_disk_space(disk, 100, space)
    require_disk_space(disk, min(100, free), CheckpointSpace(str(disk), 0, 0))


def test_a_folder_in_memory_is_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(backing, "_memory_kind", lambda folder: "tmpfs")
    plan = DEEP.compile(tmp_path, STREAMING, 1).plan
    with pytest.raises(
        UsageError, match=r"is on a memory file system \(tmpfs\): choose a folder on disk"
    ):
        make_store(plan, RunSettings(weight_store="disk"))
    monkeypatch.setattr(backing, "_memory_kind", lambda folder: None)
    with pytest.raises(UsageError, match="is not a folder: create it"):
        make_store(plan, settings_of(tmp_path / "none", plan))


@pytest.mark.parametrize(("available", "is_on_disk"), [(1 << 40, False), (1 << 20, True)])
def test_without_settings_it_lies_where_it_fits(tmp_path, disk, monkeypatch, available, is_on_disk):
    memory = namedtuple("Memory", "available")(available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    plan = DEEP.compile(tmp_path, STREAMING, 1).plan
    store = make_store(plan, RunSettings(weight_store_dir=str(disk)))
    try:
        assert (store.disk is not None) == is_on_disk
        assert not store.memory.bytes.any()
        if store.disk is not None:
            assert store.disk.memory_bytes == least_bytes(plan)
    finally:
        store.close()


def test_memory_alone_cannot_be_bounded(tmp_path):
    plan = DEEP.compile(tmp_path, STREAMING, 1).plan
    with pytest.raises(CsrunError, match=r"weight_store_memory is 1,000 bytes"):
        make_store(plan, RunSettings(weight_store="memory", weight_store_memory=1000))


def test_several_tasks_have_their_own_groups_alone(tmp_path, disk):
    """Each task reserves its part of a file as long as the store; they share the memory limit."""
    plan, servers = DEEP.compile(tmp_path, STREAMING, 1).plan, 3
    shards, bound = StoreShards.of(plan, servers), least_of(plan, servers) + 1000
    settings = settings_of(disk, plan, bound)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(
                closing(make_store(plan, settings, part=StoreShare(shards, server)))
            )
            for server in range(servers)
        ]
        window = plan.store.nbytes - 3 * sum(g.nbytes for g in plan.groups)
        for server, store in enumerate(stores):
            own = sum(plan.groups[g].nbytes for g in shards.own(plan, server))
            assert 3 * own < store.nbytes <= 3 * own + window
            found = [os.fstat(part) for part in store.parts]
            assert [each.st_size for each in found] == [plan.store.nbytes] * 2
            taken = sum(512 * each.st_blocks for each in found)
            assert store.nbytes <= taken < plan.store.nbytes
        assert sum(store.disk.memory_bytes for store in stores) in range(bound - servers, bound + 1)
    with pytest.raises(CsrunError, match=f"at least {bound - 1000:,} bytes for this model"):
        make_store(plan, settings_of(disk, plan, bound - 1001), part=StoreShare(shards))


def test_a_task_has_room_for_the_gradients_of_all_systems(tmp_path):
    """Weights, two moments, clipped gradients of each system, parts of the loss and their sum."""
    network, servers, systems = replace(DEEP, optimizer=OPTIMIZERS["clipped"]), 3, 2
    options = options_of(STREAMING, RunMode.TRAIN, group_bytes=1, systems=systems)
    plan = compile_model(network.trace(RunMode.TRAIN), tmp_path, options).executable.plan
    shards = StoreShards.of(plan, servers)
    for own in (shards.own(plan, server) for server in range(servers)):
        weights = sum(plan.groups[group].nbytes for group in own)
        assert store_bytes(plan, own) == (3 + systems) * weights + 64


def test_room_for_the_stores_that_come_later_is_seen_to(tmp_path, disk):
    plan = DEEP.compile(tmp_path, STREAMING, 1).plan
    part = StoreShare(StoreShards.of(plan, 2), 0, later_bytes=1 << 60)
    with pytest.raises(CsrunError, match=r"bytes free, 1,152,9[0-9,]+ are needed: "):
        make_store(plan, settings_of(disk, plan, plan.store.nbytes), part=part)
