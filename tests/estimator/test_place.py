"""System assigned to a run once its program is compiled."""

import logging
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.programs import Network

from csrun import nn
from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import CSRunConfig
from csrun.context.job import Hosts
from csrun.estimator import target
from csrun.estimator.target import Target, checkpoint_space, find_target, on_least_loaded
from csrun.site import System, load
from csrun.system import Power, SystemState, acquire, save_state

MODE, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
LOCAL = load("local")
FIRST = LOCAL.systems[0]
SECOND = msgspec.structs.replace(LOCAL.systems[1], mode=MODE)
SMALLER = msgspec.structs.replace(SECOND, fabric_width=10)
pytestmark = pytest.mark.usefixtures("state")


def test_a_system_that_became_busy_is_left_for_one_like_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    site = msgspec.structs.replace(LOCAL, systems=(FIRST, SECOND))
    target = Target(None, site, FIRST, MODE, is_open=True)
    assert on_least_loaded(target) == target
    with acquire(site, FIRST, MODE, "job 1"):
        assert on_least_loaded(target).system == SECOND
        named = Target(None, site, FIRST, MODE)
        assert on_least_loaded(named) == named
        with acquire(site, SECOND, MODE, "job 2"):
            assert on_least_loaded(target) == target
    (said,) = caplog.messages
    assert said.endswith("using cs2-02 (127.0.0.2), the first free system in PIPELINED mode")


@pytest.mark.parametrize(
    ("there", "first", "last", "count", "options"),
    [
        (0, 0, None, 4, {}),  # three that are kept, and the one being written
        (3, 300, None, 1, {}),
        (5, 500, None, 0, {}),
        (0, 0, 50, 2, {}),  # of step 0 and of the last one
        (0, 0, 50, 1, {"save_initial_checkpoint": False}),
        (0, 0, 100, 2, {}),
        (2, 150, 250, 2, {}),
    ],
)
def test_the_checkpoints_of_a_run_are_counted(
    tmp_path, monkeypatch, there, first, last, count, options
):
    """Every 100 steps, of which 3 are kept."""
    monkeypatch.setattr(target.checkpoints, "kept_steps", lambda folder: list(range(there)))
    network = Network(sizes=(4, 3), optimizer=nn.AdamW(0.1))
    plan = network.compile(tmp_path, ExecutionMode.WEIGHT_STREAMING).plan
    config = CSRunConfig(save_checkpoints_steps=100, keep_checkpoint_max=3, **options)
    run = SimpleNamespace(config=config, model_dir=tmp_path)
    space = checkpoint_space(run, plan, first, last)
    assert (space.folder, space.count) == (str(tmp_path), count)
    assert space.nbytes == count * 3 * 4 * (4 * 3 + 3)


@pytest.mark.parametrize(
    ("systems", "held", "why"),
    [
        ((FIRST,), (FIRST,), "the only system in PIPELINED mode"),
        ((FIRST, SECOND), (FIRST,), "the system in PIPELINED mode with the fewest jobs"),
        ((FIRST, SECOND), (), "the first free system in PIPELINED mode"),
    ],
)
def test_why_a_system_was_taken_is_said(
    systems: tuple[System, ...], held: tuple[System, ...], why: str
) -> None:
    site = msgspec.structs.replace(LOCAL, systems=systems)
    with ExitStack() as leases:
        for each in held:
            leases.enter_context(acquire(site, each, MODE, "job 1"))
        assert target._reason(site, FIRST, MODE) == why


def test_another_kind_of_system_is_no_choice() -> None:
    site = msgspec.structs.replace(LOCAL, systems=(FIRST, SMALLER))
    target = Target(None, site, FIRST, MODE, is_open=True)
    with acquire(site, FIRST, MODE, "job 1"):
        assert on_least_loaded(target) == target


def test_a_job_that_was_given_systems_has_no_others() -> None:
    given = ("cs2-03", "cs2-05")
    job = SimpleNamespace(site="streaming-8", systems=given, hosts=Hosts.SEPARATE)
    context: Any = SimpleNamespace(mode=STREAMING, job=job, memoryx=1, swarmx=(2,))

    def taken(**config: Any) -> tuple[str, ...]:
        target = find_target(context, CSRunConfig(**config))
        assert on_least_loaded(target) == target
        return tuple(each.name for each in target.systems)

    assert taken() == given[:1]
    assert taken(num_csx=2) == given
    assert taken(num_csx=2, cs_ip="cs2-05") == given[::-1]
    with pytest.raises(
        UsageError, match="cs2-01 is not allocated to the job, which has cs2-03, cs2-05"
    ):
        taken(num_csx=2, cs_ip="cs2-01")
    with pytest.raises(
        UsageError,
        match=r"at most 2, the systems of the job \(cs2-03, cs2-05\), got 3: pass --num_csx 3",
    ):
        taken(num_csx=3)
    site = load("streaming-8")
    save_state(site, site.systems[4], SystemState(Power.STANDBY, STREAMING))
    said = "at most 1, got 2: the job has 2 CS systems: cs2-05 is in STANDBY"
    with pytest.raises(UsageError, match=said):
        taken(num_csx=2)


@pytest.mark.parametrize(
    ("site", "mode", "hosts", "memoryx", "message"),
    [
        ("local", MODE, Hosts.SHARED, 0, "num_csx must be 1 in PIPELINED mode, got 5: .*python-ws"),
        (
            "streaming-8",
            STREAMING,
            Hosts.SEPARATE,
            3,
            "2 SwarmX tasks .* has 1: pass --num_csx 5 .* --total-nodes 7 --single-task-nodes 6",
        ),
    ],
)
def test_several_systems_need_weight_streaming_and_between_machines_swarmx(
    site: str, mode: ExecutionMode, hosts: Hosts, memoryx: int, message: str
) -> None:
    job = SimpleNamespace(site=site, systems=(), hosts=hosts)
    context: Any = SimpleNamespace(mode=mode, job=job, memoryx=memoryx, swarmx=(4,))
    assert len(find_target(context, CSRunConfig()).systems) == 1
    if hosts is Hosts.SEPARATE:
        assert len(find_target(context, CSRunConfig(num_csx=4)).systems) == 4
    with pytest.raises(UsageError, match=message):
        find_target(context, CSRunConfig(num_csx=5))
