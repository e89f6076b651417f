"""The smallest layout that feeds a target, against an exhaustive search."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.pipelines import CLUSTER, LOCAL, measured, points_of

from csrun.advice.analysis.scaling import Saturation, Scaling, ScalingLimit, SiteFacts
from csrun.advice.analysis.solve import FeedTarget, Solution, solve
from csrun.advice.measurements import Measurements

RATE = 1000.0  # of one worker


@dataclass(frozen=True)
class Case:
    """Pipeline with a ceiling on one machine of `cpus` CPUs, and a site."""

    cap: float
    computes: bool  # the ceiling is the CPUs', not of something else
    streaming: bool
    nodes: int
    node_cpus: int
    one_machine: bool
    target: float
    machine_cpus: int = 4

    def measurements(self) -> Measurements:
        def busy(n: int) -> float:
            most = float(self.machine_cpus)
            return min(n * RATE / self.cap * most, most) if self.computes else 0.01

        points = points_of(lambda n: min(RATE * n, self.cap), (1, 2, 3, 4, 6, 8), busy=busy)
        return measured(points, streaming=self.streaming, machine_cpus=self.machine_cpus)

    def site(self) -> SiteFacts:
        return SiteFacts("any", self.nodes, self.node_cpus, self.one_machine, 1.5e11)

    def delivers(self, nodes: int, tasks: int) -> float:
        """Samples/s of a layout's streamers, by hand."""
        if self.streaming:
            on_nodes = [0, 0] + [tasks] * (nodes - 2)
        elif nodes * tasks == 1:
            on_nodes = [1]
        else:
            on_nodes = [tasks - 1] + [tasks] * (nodes - 1)
        if self.one_machine and self.computes:
            return min(self.in_turn(sum(on_nodes)), self.cap)
        if self.one_machine or not self.computes:
            return min(RATE * sum(on_nodes), self.cap)
        node_cap = self.cap * self.node_cpus / self.machine_cpus
        return sum(min(RATE * count, node_cap) for count in on_nodes)

    def in_turn(self, streamers: int) -> float:
        """Samples/s of streamers on the machine's CPUs in turn; the slowest one limits all."""
        on_cpus = [0] * self.machine_cpus
        for streamer in range(streamers):
            on_cpus[streamer % self.machine_cpus] += 1
        wanted = min(1.0, RATE / self.cap * self.machine_cpus)  # of a CPU, by one that is alone
        return streamers * RATE * min(1.0, 1 / (max(on_cpus) * wanted))

    def search(self) -> tuple[int, int] | None:
        for nodes in range(3 if self.streaming else 1, self.nodes + 1):
            for tasks in range(1, self.node_cpus + 1):
                if self.delivers(nodes, tasks) >= 1.125 * self.target:
                    return nodes, tasks
        return None


cases = st.builds(
    Case,
    cap=st.sampled_from([2000.0, 3000.0, 4000.0]),
    computes=st.booleans(),
    streaming=st.booleans(),
    nodes=st.integers(3, 8),
    node_cpus=st.integers(1, 12),
    one_machine=st.booleans(),
    target=st.integers(100, 50_000).map(lambda tens: 10.0 * tens + 3),
)


@given(case=cases)
@settings(max_examples=150)
def test_it_is_what_an_exhaustive_search_finds(case: Case) -> None:
    site = case.site()
    scaling = Scaling(case.measurements(), site)
    found = solve(scaling, FeedTarget(case.target, "here"), case.streaming, site.nodes)
    layout, expected = found.layout, case.search()
    assert layout.samples_per_s == pytest.approx(
        case.delivers(layout.nodes, layout.tasks_per_node), rel=0.01
    )
    if expected is not None:
        assert (layout.nodes, layout.tasks_per_node) == expected
        assert (found.limit, found.missing) == (None, 1)
    else:
        most = max(
            case.delivers(nodes, tasks)
            for nodes in range(3 if case.streaming else 1, case.nodes + 1)
            for tasks in range(1, case.node_cpus + 1)
        )
        assert layout.samples_per_s >= 0.95 * most
        assert found.limit is not None
        assert found.missing == pytest.approx(1.125 * case.target / layout.samples_per_s)
        assert found.most.samples_per_s == pytest.approx(most, rel=0.01)
    assert found.most.samples_per_s >= max(each.samples_per_s for each in found.by_nodes)


def solved(measurements: Measurements, site: SiteFacts, target: float) -> Solution:
    return solve(
        Scaling(measurements, site), FeedTarget(target, "here"), measurements.streaming, site.nodes
    )


def test_fewer_tasks_come_before_fewer_cpus() -> None:
    """Two CPUs make a worker 1.9 times as fast: two such workers replace three with one CPU."""
    points = (
        *points_of(lambda n: RATE * n, (1, 2, 3), cpus=1),
        *points_of(lambda n: 1.9 * RATE * n, (1, 2, 3), cpus=2, busy=lambda n: 2.0 * n),
    )
    layout = solved(measured(points, parallel=True, streaming=True), CLUSTER, 2600).layout
    assert (layout.nodes, layout.tasks_per_node, layout.cpus_per_task) == (3, 2, 2)
    alone = solved(measured(points, parallel=False, streaming=True), CLUSTER, 2600).layout
    assert (alone.nodes, alone.tasks_per_node, alone.cpus_per_task) == (3, 3, 1)


def test_a_resource_that_is_no_cpu_does_not_grow_with_nodes() -> None:
    disk = measured(points_of(lambda n: min(RATE * n, 1500), busy=lambda n: 0.1))
    found = solved(disk, CLUSTER, 3000)
    assert Scaling(disk, CLUSTER).saturation(1) is Saturation.RESOURCE
    assert found.limit is ScalingLimit.RESOURCE
    assert found.layout.samples_per_s == pytest.approx(1500)


@pytest.mark.parametrize("busy", [0.01, 2.0])
def test_replayed_batches_do_not_scale_with_nodes(busy: float) -> None:
    """Each streamer also makes the others' batches, as it does on nodes with their own CPUs."""
    points = points_of(lambda n: RATE, busy=lambda n: busy)
    found = solved(measured(points, replayed=True), CLUSTER, 3000)
    assert Scaling(measured(points, replayed=True), CLUSTER).saturation(1) is Saturation.REPLAY
    assert found.limit is ScalingLimit.REPLAY
    assert found.layout.samples_per_s == pytest.approx(RATE)
    assert found.layout.streamers == 1


def test_a_single_worker_shows_no_contention() -> None:
    """A point below the law indicates a shared resource only with several workers."""
    rates = {1: 900.0, 2: 4000.0}
    points = points_of(rates.__getitem__, tuple(rates), busy=lambda n: 0.1)
    assert Scaling(measured(points), LOCAL).saturation(1) is Saturation.NOTHING


def test_what_the_system_takes_in_is_the_end_of_it() -> None:
    fast = measured(points_of(lambda n: 1e6 * n, busy=lambda n: 0.01 * n), sample_bytes=1_000_000)
    found = solved(fast, CLUSTER, 1e6)
    assert found.limit is ScalingLimit.LINK
    assert found.layout.samples_per_s == pytest.approx(150_000)  # 1.2 Tb/s


def test_all_nodes_used_well_are_too_few() -> None:
    slow = measured(points_of(lambda n: n, busy=lambda n: 0.01 * n), streaming=True)
    found = solved(slow, CLUSTER, 1e6)
    assert found.limit is ScalingLimit.NODES
    assert (found.layout.nodes, found.layout.tasks_per_node) == (16, 8)


def test_tables_by_nodes_go_up_to_all_of_them() -> None:
    found = solved(measured(points_of(lambda n: n), streaming=True), LOCAL, 1)
    assert [layout.nodes for layout in found.by_nodes] == [3, 4, 8, 16]
    assert found.layout in found.by_nodes


def test_a_site_with_too_few_nodes_is_refused() -> None:
    streaming = measured(points_of(lambda n: n), streaming=True)
    with pytest.raises(ValueError, match="at least 3 nodes, got 2"):
        solve(Scaling(streaming, LOCAL), FeedTarget(1, "here"), True, 2)


def test_a_third_task_on_two_cpus_holds_the_others_up() -> None:
    """Two tasks share a CPU and make half a batch each while the third makes one, and waits."""
    computes = measured(
        points_of(lambda n: min(RATE * n, 2 * RATE), (1, 2, 3), busy=lambda n: min(n, 2.0))
    )
    rates = [Scaling(computes, LOCAL).layout(1, 1 + n, 1).samples_per_s for n in (1, 2, 3, 4)]
    assert rates == pytest.approx([RATE, 2 * RATE, 1.5 * RATE, 2 * RATE])
    sleeps = measured(points_of(lambda n: RATE * n, (1, 2, 3), busy=lambda n: 0.1 * n))
    rates = [Scaling(sleeps, LOCAL).layout(1, 1 + n, 1).samples_per_s for n in (3, 20, 21)]
    assert rates == pytest.approx([3 * RATE, 20 * RATE, 21 * RATE / 1.1], rel=0.05)


@pytest.mark.parametrize("streaming", [True, False])
def test_no_more_streamers_than_files(streaming: bool) -> None:
    """Five files and an unlimited law: at most five streamers."""
    points = points_of(lambda n: RATE * n, (1, 2, 3), busy=lambda n: 0.01)
    facts = replace(measured(points, streaming=streaming, machine_cpus=4), most_streamers=5)
    site = SiteFacts("any", 8, 16, True, 1.5e11)
    found = solve(Scaling(facts, site), FeedTarget(100 * RATE, "by hand"), streaming, 8)
    assert (found.layout.streamers, found.limit) == (5, ScalingLimit.FILES)
    assert found.layout.samples_per_s == pytest.approx(5 * RATE)
    assert all(layout.streamers <= 5 for layout in found.by_nodes)
    fed = solve(Scaling(facts, site), FeedTarget(4 * RATE, "by hand"), streaming, 8)
    assert (fed.layout.streamers, fed.limit) == (5, None)
