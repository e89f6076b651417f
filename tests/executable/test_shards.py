"""Assignment of weight groups to MemoryX tasks: contiguous, as balanced as by exhaustive search."""

from itertools import combinations_with_replacement, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import Network

from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode, RunMode
from csrun.executable.plan import Plan
from csrun.executable.shards import StoreShards
from csrun.executable.stored_groups import Group, TensorShard

SIZES = st.lists(st.integers(1, 40), max_size=8)


def plan_of(sizes: list[int]) -> Plan:
    """Stub of a plan with groups of these sizes."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    groups = tuple(
        Group(number, (f"layer {number}",), start, size)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )
    return type("Plan", (), {"groups": groups, "parameters": ()})()


@given(SIZES, st.integers(2, 5))
def test_the_largest_part_is_the_least_possible(sizes: list[int], servers: int) -> None:
    plan = plan_of(sizes)
    shards = StoreShards.of(plan, servers)
    owns = [shards.own(plan, server) for server in range(servers)]
    assert [group for own in owns for group in own] == list(range(len(sizes)))
    tried = (
        max(sum(sizes[first:end]) for first, end in pairwise((0, *cuts, len(sizes))))
        for cuts in combinations_with_replacement(range(len(sizes) + 1), servers - 1)
    )
    assert max(sum(sizes[group] for group in own) for own in owns) == min(tried)
    assert sum(not own for own in owns) == max(0, servers - len(sizes))


def test_one_task_has_all() -> None:
    assert StoreShards.of(plan_of([64, 64]), 1).own(plan_of([64, 64]), 0) is None


def test_the_parts_of_a_tensor_stay_together() -> None:
    """Groups of 64 bytes, of which the first three have shards of one tensor."""
    parts = [TensorShard("t", 48, 0), TensorShard("t", 48, 16), TensorShard("t", 48, 32), None]
    plan = plan_of([64] * 4)
    plan.parameters = tuple(
        SimpleNamespace(offset_bytes=64 * number, part=part) for number, part in enumerate(parts)
    )
    assert StoreShards.of(plan, 2).servers_of(plan) == (0, 0, 0, 1)


def test_a_group_of_two_tasks_is_refused() -> None:
    whole = Group(0, ("a", "b"), 0, 128)
    with pytest.raises(CsrunError, match=r"a, b: one group here.*num_wgt_servers"):
        StoreShards.of(plan_of([64, 64]), 2).server_of(whole)


def test_an_evaluation_is_cut_where_the_tasks_are(tmp_path) -> None:
    """The evaluation's group contains layers of several groups of the training."""
    network, mode = Network(sizes=(12, 40, 30, 5)), ExecutionMode.WEIGHT_STREAMING
    training = network.compile(tmp_path / "t", mode, 1)
    evaluation = network.compile(tmp_path / "e", mode, 1 << 20, RunMode.EVAL)
    assert (len(training.plan.groups), len(evaluation.plan.groups)) == (3, 1)
    shards = StoreShards.of(training.plan, 3)
    assert shards.servers_of(training.plan) == (0, 1, 2)
    assert shards.servers_of(evaluation.over(training.plan).plan) == (0, 1, 2)
