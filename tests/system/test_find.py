"""Choice of a run's system."""

import time

import msgspec
import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.site import load
from csrun.system import (
    Power,
    SystemState,
    acquire,
    choose_compatible,
    find,
    save_state,
    systems_in_mode,
    users_of,
)
from csrun.system.state_files import queue_of

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
SITE = load("local")
pytestmark = pytest.mark.usefixtures("state")


@pytest.mark.parametrize("cs_ip", [None, "127.0.0.2", "127.0.0.2:9000", "cs2-02"])
def test_host_host_and_port_name_or_nothing(cs_ip: str | None) -> None:
    assert find(SITE, cs_ip, STREAMING).name == "cs2-02"


@pytest.mark.parametrize("cs_ip", ["10.0.0.1", "127.0.0.2:9001", "cs2-03", ""])
def test_an_unknown_one_lists_the_known(cs_ip: str) -> None:
    with pytest.raises(UsageError, match=r"cs2-01 \(127\.0\.0\.1.*cs2-02 \(127\.0\.0\.2"):
        find(SITE, cs_ip, STREAMING)


def test_the_wrong_mode_is_named_with_what_to_use() -> None:
    with pytest.raises(UsageError, match=r"cs2-01 is in PIPELINED mode.*use cs2-02"):
        find(SITE, "cs2-01", STREAMING)


def test_a_system_in_standby_is_no_choice() -> None:
    system = SITE.systems[1]
    save_state(SITE, system, SystemState(Power.STANDBY, STREAMING))
    with pytest.raises(CsrunError, match=r"cs2-02 is in STANDBY.*system activate"):
        find(SITE, "cs2-02", STREAMING)
    with pytest.raises(CsrunError, match="no ACTIVE system in WEIGHT_STREAMING"):
        find(SITE, None, STREAMING)


def test_systems_that_share_a_run_are_those_with_the_fewest_jobs() -> None:
    cluster = load("streaming-8")
    first, second, third, *_ = cluster.systems
    with acquire(cluster, second, STREAMING, "job 1"):
        found = choose_compatible(cluster, first, 2, STREAMING)
    assert [system.name for system in found] == ["cs2-03", "cs2-04"]
    assert choose_compatible(cluster, third, 7, STREAMING)[0] == first


def test_what_keeps_systems_from_sharing_a_run_is_named() -> None:
    cluster = load("streaming-8")
    first, second, third, fourth, *_ = cluster.systems
    smaller = msgspec.structs.replace(fourth, sram_kb_per_core=24)
    cluster = msgspec.structs.replace(cluster, systems=(first, second, third, smaller))
    save_state(cluster, second, SystemState(Power.STANDBY, STREAMING))
    save_state(cluster, third, SystemState(Power.ACTIVE, PIPELINED))
    expected = (
        "num_csx must be at most 1, got 3: site streaming-8 has 4 CS systems: cs2-02 is in STANDBY;"
        " cs2-03 is in PIPELINED mode; cs2-04 differs in geometry from cs2-01"
    )
    with pytest.raises(UsageError) as refused:
        choose_compatible(cluster, first, 2, STREAMING)
    assert str(refused.value) == expected


def test_more_systems_than_the_site_has() -> None:
    cluster = load("streaming-8")
    with pytest.raises(UsageError, match="must be at most 8, got 9: site streaming-8 has 8 CS sys"):
        choose_compatible(cluster, cluster.systems[0], 8, STREAMING)


def test_a_system_that_boots_will_be_ready_but_another_is_ready_now() -> None:
    booting = SystemState(Power.BOOTING, STREAMING, time.time() + 1000)
    save_state(SITE, SITE.systems[0], booting)
    assert find(SITE, "cs2-01", STREAMING).name == "cs2-01"
    assert find(SITE, None, STREAMING).name == "cs2-02"
    save_state(SITE, SITE.systems[1], SystemState(Power.ACTIVE, PIPELINED))
    assert find(SITE, None, STREAMING).name == "cs2-01"


def test_the_configured_mode_counts_not_the_site_files() -> None:
    save_state(SITE, SITE.systems[1], SystemState(Power.ACTIVE, PIPELINED))
    assert find(SITE, "cs2-02", PIPELINED).name == "cs2-02"


ALIKE = msgspec.structs.replace(  # both pipelined
    SITE, systems=tuple(msgspec.structs.replace(s, mode=PIPELINED) for s in SITE.systems)
)


def test_the_first_free_system_in_the_mode() -> None:
    first, second = ALIKE.systems
    assert systems_in_mode(ALIKE, PIPELINED) == [first, second]
    assert find(ALIKE, None, PIPELINED) == first
    with acquire(ALIKE, first, PIPELINED, "job 1"):
        assert find(ALIKE, None, PIPELINED) == second
        with acquire(ALIKE, second, PIPELINED, "job 2"):
            assert find(ALIKE, None, PIPELINED) == first
            ticket = queue_of(ALIKE, first).join("job 3 (process 1)")
            assert (users_of(ALIKE, first), users_of(ALIKE, second)) == (2, 1)
            assert find(ALIKE, None, PIPELINED) == second
            ticket.leave()
    assert find(ALIKE, None, PIPELINED) == first
