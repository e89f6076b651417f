"""Classification of tensors as weights or optimizer state, for any names of weights.

Expected values are known by construction: weights are listed, and the state is made from them.
"""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from csrun.base.errors import CsrunError
from csrun.cli import frame
from csrun.cli.csrun import csrun
from csrun.records import checkpoints
from csrun.records.torch_names import state_dict_names, stored_name, torch_identity

SLOTS = st.sampled_from([(), ("momentum",), ("gradient_sum", "square_sum")])
PARTS = st.sampled_from(["momentum", "gradient_sum", "square_sum", "m", "att", "out", "kernel"])
LAYERS = st.sampled_from(["momentum", "att", "h.0"])  # a layer's name may have dots
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.tuples(LAYERS, PARTS).map(
    "/".join
)
Arrays = dict[str, np.ndarray]


@st.composite
def models(draw: st.DrawFn) -> tuple[list[str], tuple[str, ...]]:
    """Names of weights and of slots; the compiler refuses a weight named `slot/weight`."""
    slots = draw(SLOTS)
    weights: list[str] = []
    for name in sorted(draw(st.sets(NAMES, min_size=1, max_size=6)), key=len):
        slot, _, other = name.partition("/")
        if not (slot in slots and other in weights):
            weights.append(name)
    return draw(st.permutations(weights)), slots


def values(names: list[str], first: int) -> Arrays:
    return {name: np.full(2, first + i, np.float32) for i, name in enumerate(names)}


def blank(like: Arrays) -> Arrays:
    return {name: np.full_like(array, -1) for name, array in like.items()}


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def said(*words: object) -> tuple[int, str]:
    """Exit code and output of `csrun checkpoint`."""
    with redirect_stdout(StringIO()) as out:
        code = frame.run(csrun, ["checkpoint", *map(str, words)])
    return code, out.getvalue()


def run(*words: object) -> None:
    assert said(*words)[0] == 0


@settings(max_examples=60, deadline=None)
@given(models())
def test_every_reader_tells_weights_from_optimizer_state(
    model: tuple[list[str], tuple[str, ...]],
) -> None:
    names, slots = model
    weights = values(names, 1)
    state = weights | values([f"{slot}/{name}" for slot in slots for name in names], 100)
    with TemporaryDirectory() as place:
        folder = Path(place)
        identity = {"seed": "1", "optimizer_state": " ".join(slots)}
        checkpoints.write(folder, 3, state, identity, 1)
        found = checkpoints.open_checkpoint(folder)
        assert set(found.weights) == set(names)
        for wanted in (state, weights):  # a training's; an evaluation's
            found.restore(target := blank(wanted))
            assert_same(target, wanted)
        run("convert", folder, folder / "weights.safetensors", "--to", "torch")
        assert_same(load_file(folder / "weights.safetensors"), weights)
        run("convert", folder / "weights.safetensors", folder / "back", "--from", "torch")
        if all("/" in name for name in names):  # as layers name their weights
            back = checkpoints.open_checkpoint(folder / "back")
            assert set(back.weights) == set(names)
            back.begin(target := blank(weights))
            assert_same(target, weights)


@settings(max_examples=20, deadline=None)
@given(models(), st.data())
def test_commands_show_the_names_as_they_are(
    model: tuple[list[str], tuple[str, ...]], data: st.DataObject
) -> None:
    names, slots = model
    weights = values(names, 1)
    state = weights | values([f"{slot}/{name}" for slot in slots for name in names], 100)
    changed = data.draw(st.sampled_from(sorted(state)))
    identity = {"seed": "1", "optimizer_state": " ".join(slots)}
    with TemporaryDirectory() as place:
        folder = Path(place)
        checkpoints.write(folder, 3, state, identity, 2)
        later = state | {changed: state[changed] + 1}
        checkpoints.write(folder, 4, later, identity, 2)
        assert said("verify", folder)[0] == 0
        code, listed = said("list", folder)
        assert code == 0
        assert [line.split()[0] for line in listed.splitlines() if line[:1].isdigit()] == ["3", "4"]
        code, differing = said("diff", folder / "model-ckpt-3", folder)
        assert code == 1
        found = {line.split()[0] for line in differing.splitlines() if line.strip()}
        assert found & state.keys() == {changed}
        assert said("diff", folder, folder)[0] == 0


@settings(max_examples=40, deadline=None)
@given(models())
def test_a_converted_checkpoint_gives_every_weight(
    model: tuple[list[str], tuple[str, ...]],
) -> None:
    names, _ = model
    weights = values(names, 1)
    with TemporaryDirectory() as place:
        folder = Path(place)
        checkpoints.write(folder, 0, weights, checkpoints.converted_identity("x.pt", ()), 1)
        found = checkpoints.open_checkpoint(folder)
        assert set(found.weights) == set(names)
        found.begin(target := blank(weights))
        assert_same(target, weights)


KEYS = st.text(st.sampled_from("ab/%_ "), min_size=1, max_size=4)  # of a ModuleDict


@settings(max_examples=40, deadline=None)
@given(st.sets(st.tuples(KEYS, KEYS).map(".".join), min_size=1, max_size=6))
def test_pytorchs_names_come_back_whatever_signs_they_have(names: set[str]) -> None:
    names |= {"head.weight"}
    weights = values(sorted(names), 1)
    with TemporaryDirectory() as place:
        folder = Path(place)
        save_file(weights, folder / "weights.safetensors")
        run("convert", folder / "weights.safetensors", folder / "made", "--from", "torch")
        found = checkpoints.open_checkpoint(folder / "made")
        identity = torch_identity(names, {})
        assert set(state_dict_names(found.weights, identity)) == names
        found.begin(target := blank({stored_name(name): weights[name] for name in names}))
        assert_same(target, {stored_name(name): weights[name] for name in names})


WEIGHTS = {"out/kernel": np.ones(2, np.float32), "att/out/kernel": np.full(2, 3, np.float32)}


def test_a_manifest_without_slot_names_has_only_known_ones(tmp_path: Path) -> None:
    state = WEIGHTS | values(["momentum/out/kernel", "momentum/att/out/kernel"], 7)
    checkpoints.write(tmp_path, 1, state, {"seed": "1"}, 1)
    found = checkpoints.open_checkpoint(tmp_path)
    assert set(found.weights) == set(WEIGHTS)
    found.restore(target := blank(WEIGHTS))
    assert_same(target, WEIGHTS)


def test_a_converted_manifest_without_slot_names_has_none(tmp_path: Path) -> None:
    weights = WEIGHTS | values(["momentum/out/kernel"], 7)
    checkpoints.write(tmp_path, 0, weights, {"converted_from": "x.pt"}, 1)
    assert set(checkpoints.open_checkpoint(tmp_path).weights) == set(weights)


def test_a_weight_too_many_is_no_optimizer_state(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 1, WEIGHTS, {"optimizer_state": "momentum"}, 1)
    found = checkpoints.open_checkpoint(tmp_path)
    with pytest.raises(CsrunError, match="tensor att/out/kernel: not in the model"):
        found.restore({"out/kernel": np.zeros(2, np.float32)})
