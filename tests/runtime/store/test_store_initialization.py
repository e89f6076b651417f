"""First values: those of NumPy's generators, for any process and thread count."""

import hashlib

import numpy as np
import pytest
from msgspec.structs import replace
from support.programs import Network

from csrun import nn
from csrun.base.mode import ExecutionMode
from csrun.executable import Initializer, InitializerKind, state_views, tensors_of
from csrun.runtime.store import store_initialization
from csrun.runtime.store.store_initialization import initialize

SEED = 5
NETWORK = Network(sizes=(300, 280, 260, 10), optimizer=nn.Adagrad(0.1, initial_accumulator=0.25))


@pytest.fixture
def plan(tmp_path):
    return NETWORK.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING, 1).plan


def drawn(plan, threads: int, **options):
    store = np.zeros(plan.store.nbytes, np.uint8)
    state = state_views(plan, store)
    initialize(plan, state, SEED, threads, **options)
    return state


def by_numpy(parameter) -> np.ndarray:
    """A parameter's values in one draw: normal ones in float32, others in float64, rounded."""
    digest = hashlib.blake2b(f"{SEED}/{parameter.name}".encode(), digest_size=16).digest()
    key = int.from_bytes(digest, "little")
    generator = np.random.Generator(np.random.Philox(key=key))
    scale = parameter.initializer.scale
    match parameter.initializer.kind:
        case InitializerKind.UNIFORM:
            values = generator.uniform(-scale, scale, parameter.shape)
        case InitializerKind.NORMAL:
            generator = np.random.Generator(np.random.SFC64(key))
            drawn = generator.standard_normal(parameter.shape, np.float32)
            values = drawn * np.float32(scale)
        case kind:
            values = np.full(parameter.shape, float(kind is InitializerKind.ONES))
    return values.astype(parameter.dtype)


@pytest.mark.parametrize("kind", [InitializerKind.UNIFORM, InitializerKind.NORMAL])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_values_are_numpys(plan, monkeypatch, threads, kind):
    monkeypatch.setattr(store_initialization, "CHUNK", 1000)  # of which no tensor is a multiple
    plan = replace(
        plan,
        parameters=tuple(
            replace(p, initializer=Initializer(kind, 0.3)) if p.name.endswith("kernel") else p
            for p in plan.parameters
        ),
    )
    state = drawn(plan, threads)
    for p in plan.parameters:
        np.testing.assert_array_equal(state[p.name], by_numpy(p), strict=True)
        np.testing.assert_array_equal(state[f"square_sum/{p.name}"], np.float32(0.25))


@pytest.mark.parametrize("chunk", [100, 1 << 16])
def test_values_are_those_of_the_model_where_a_tensor_lies_transposed(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(store_initialization, "CHUNK", chunk)
    network = Network(sizes=(280, 300, 10), optimizer=NETWORK.optimizer)
    plan = network.compile(
        tmp_path, ExecutionMode.WEIGHT_STREAMING, 1, max_group_bytes=1 << 17
    ).plan
    assert {p.is_transposed for p in plan.parameters} == {True, False}
    state = drawn(plan, 2)
    for p in tensors_of(plan):
        np.testing.assert_array_equal(state[p.name], by_numpy(p), strict=True)


def test_zeros_are_not_written_again(plan):
    """In a new store; otherwise they are."""
    biases = {p.name for p in plan.parameters if p.initializer.kind is InitializerKind.ZEROS}
    assert biases
    told = []
    drawn(plan, 2, is_fresh=True, drawn=told.append)
    assert {name for name in told if "/bias" in name} == {f"square_sum/{name}" for name in biases}
    store = np.full(plan.store.nbytes, 0xFF, np.uint8)
    state = state_views(plan, store)
    initialize(plan, state, SEED)
    assert not any(state[name].any() for name in biases)
