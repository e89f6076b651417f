"""A checkpoint copied during the next step holds the state of its own step."""

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.programs import options_of
from support.running import (
    NETWORK,
    PIPELINED,
    SETTINGS,
    STREAMING,
    TIED,
    assert_same,
    begun,
    copied,
    data,
    opened,
)

from csrun.base.mode import RunMode
from csrun.compiler import compile_model
from csrun.executable import state_layout
from csrun.records import checkpoints, tensor_files
from csrun.runtime.chief.training.training import Training
from csrun.runtime.chief.training.training_record import LoopOptions
from csrun.runtime.remote import state as state_afar
from csrun.runtime.step.update_gate import UpdateGate, copying_order
from csrun.runtime.wire.messages import StepOrder

LAST = 5
EACH_ALONE = 1  # bytes of a group: each layer is one
IN_PARTS = 600  # bytes of a matrix that is cut
COPY_S = 0.01  # of a tensor: longer than a step, so that one that did not wait would be seen


NETWORKS = [(NETWORK, None), (NETWORK, IN_PARTS), (TIED, None)]
networks = pytest.mark.parametrize(
    ("network", "most"), NETWORKS, ids=["at once", "in parts", "clipped"]
)


def compiled(network, root: Path, mode, most: int | None):
    """Compile with a group per layer, or per shard of a matrix of more than `most` bytes."""
    options = options_of(mode, RunMode.TRAIN, group_bytes=EACH_ALONE, max_group_bytes=most)
    return compile_model(network.trace(RunMode.TRAIN), root, options).executable


@networks
@pytest.mark.parametrize("mode", [PIPELINED, STREAMING])
def test_what_is_updated_first_is_copied_first(tmp_path: Path, network, most, mode) -> None:
    plan = compiled(network, tmp_path, mode, most).plan
    gate, order = UpdateGate(plan), copying_order(plan)
    assert sorted(order) == sorted(state_layout(plan))
    waits = gate.last_of_groups(plan)
    needed = [waits[group] for group in plan.deliveries]
    assert all(needed)
    assert max(needed) == len(order)
    assert needed[0] < len(order)


def test_an_update_takes_what_it_waits_for_and_no_more(tmp_path: Path) -> None:
    plan = compiled(NETWORK, tmp_path, STREAMING, None).plan
    gate, taken = UpdateGate(plan), []
    gate.wait(len(copying_order(plan)))  # nothing is copied: nobody waits
    gate.hold(lambda: taken.append(None))
    counts = []
    for group in plan.deliveries:
        gate.wait(gate.last_of_groups(plan)[group])
        counts.append(len(taken))
    assert counts == [gate.last_of_groups(plan)[group] for group in plan.deliveries]
    gate.wait(counts[-1])
    assert len(taken) == counts[-1]


@pytest.mark.parametrize(
    ("way", "servers", "mode"),
    [
        ("in process", 1, PIPELINED),
        ("memory 1", 1, PIPELINED),
        ("memory 1", 1, STREAMING),
        ("tcp 1", 1, STREAMING),
        ("tcp 1", 2, STREAMING),
    ],
)
@networks
def test_it_holds_the_state_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network, most, way: str, servers: int, mode
) -> None:
    """Compared with the same steps in one process without concurrent copies."""
    executable = compiled(network, tmp_path / "compiled", mode, most)
    values = np.random.default_rng(3)
    first = {
        name: values.normal(scale=0.3, size=place.shape).astype(place.dtype) ** 2
        for name, place in state_layout(executable.plan).items()
    }
    alone = begun(executable, data(network), first)
    expected = [copied(alone)]
    for step in range(LAST):
        alone.run(StepOrder(step, 1))
        expected.append(copied(alone))
    crc32 = tensor_files.zlib.crc32

    def slowly(*arguments):
        time.sleep(COPY_S)
        return crc32(*arguments)

    for copying in (tensor_files, state_afar):
        monkeypatch.setattr(copying, "zlib", SimpleNamespace(crc32=slowly))
    folder = tmp_path / "model_dir"
    folder.mkdir()
    options = LoopOptions(folder, 0, LAST, 100, 1, LAST + 1, {}, 0.0, SETTINGS)
    with opened(way, tmp_path, executable, [data(network)], first, servers=servers) as machine:
        Training(machine, options, None, lambda progress: None).run()
    assert checkpoints.kept_steps(folder) == tuple(range(LAST + 1))
    for step, state in enumerate(expected):
        found = checkpoints.open_checkpoint(folder / checkpoints.name_of(step))
        assert_same(state, dict(found.read(found.manifest.tensors)))
