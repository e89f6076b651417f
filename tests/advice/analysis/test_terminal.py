"""Report of an analysis: in a terminal, as JSON, as a page."""

import json
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from support.pipelines import CLUSTER, STAGES, analysis_of, bound_by_cpus, measured, points_of

from csrun.advice.analysis import terminal, web_page
from csrun.advice.analysis.result import Analysis
from csrun.advice.analysis.scaling import StreamerLayout
from csrun.advice.analysis.solve import FeedTarget
from csrun.advice.analysis.verification import verified
from csrun.advice.measurements import BackgroundUse, DeliveredRate, StageCost

WIDTH = 80
RECOMMENDED = StreamerLayout(1, 3, 1, 2, 200_000.0)  # 2 streamers x 100,000


def report(analysis: Analysis, **console) -> str:
    out = StringIO()
    terminal.show(
        analysis, Console(file=out, width=WIDTH, highlight=False, markup=False, **console)
    )
    terminal.show_verified(analysis, Console(file=out, width=WIDTH))
    return out.getvalue()


def test_it_recommends_in_the_originals_form_and_gives_the_line_to_run() -> None:
    lines = report(analysis_of(launcher=("--site", "my lab"))).splitlines()
    at = lines.index("Recommended")
    assert lines[at + 1 : at + 5] == [
        "  nodes: 1",
        "  tasks_per_node: 3",
        "  cpus_per_task: 1",
        "  2 streamers deliver 200,000 samples/s: the target is reached.",
    ]
    assert lines[lines.index("To run it") + 1] == (
        "  csrun_wse --total-nodes 1 --tasks-per-node 3 --cpus-per-task 1 --site 'my lab'"
        " python run.py --mode train"
    )


def test_it_names_target_stages_points_law_and_every_number_of_nodes() -> None:
    analysis = analysis_of(measured(points_of(bound_by_cpus), suggestions=("batch first [bold]",)))
    shown = " ".join(report(analysis).split())
    wanted = (
        "Target: 176,000 samples/s, given with --target",
        "With a margin: 198,000 samples/s, 12.5% above",
        "map load 7.00 93% 70%",
        "map load: 70% of the stages' time; it computes",
        "batch first [bold]",
        "4 1 200,000 200,000 200,000 +0.0%",
        "Roofline law: samples/s = min(100,000 n, 200,000) for n tasks, 1 CPU each",
        "The input is CPU-bound: tasks on one machine share its CPUs. All nodes are this machine",
        "16 2 1 31 193,750",  # 16 of them share a CPU, and hold the others up: 31 / 16
    )
    assert not [part for part in wanted if part not in shown]


def test_a_measured_target_is_shown_with_its_spread() -> None:
    target = FeedTarget(28_191.0, "measured here", spread=4_021.0)
    assert "28,200 ± 4,000 samples/s, measured here" in report(analysis_of(target=target))


def test_a_target_out_of_reach_is_told_with_what_limits_and_by_how_much() -> None:
    shown = " ".join(report(analysis_of(target=FeedTarget(400_000, "here"))).split())
    assert (
        "200,000 samples/s, the maximum on this site: the target with its margin is 2.25 times"
        in shown
    )
    assert "Limited by the CPUs" in shown
    # of 9 us of CPU time it takes 6.5: 6.5 / 9 / (1 / 2.25 - 2.5 / 9)
    assert "map load: 72% of the stages' CPU time; the CPUs are saturated" in shown
    assert "map load would have to be 4.33 times as fast" in shown
    assert "wait" not in shown.split("Limiting stage")[1].split("Measured")[0]
    near = " ".join(report(analysis_of(target=FeedTarget(190_000, "here"))).split())
    assert "the target is reached, but with a margin of only 5.3%" in near


def test_a_smaller_layout_that_does_nearly_as_well_is_told_beside_the_maximum() -> None:
    """Two hundred workers saturate the two CPUs; a few less are recommended."""
    naps = measured(points_of(lambda n: 2000.0 * n, busy=lambda n: 0.01 * n))
    analysis = analysis_of(naps, target=FeedTarget(1e6, "here"))
    rates = [each.samples_per_s for each in analysis.solution.by_nodes]
    assert analysis.solution.layout.samples_per_s < 400_000
    assert max(rates) <= 400_000
    shown = " ".join(report(analysis).split())
    assert "nearly the maximum on this site, 400,000 of 206 streamers on 3 nodes" in shown


def test_a_maximum_below_a_row_of_its_table_is_told_with_the_row() -> None:
    rates = {1: 100_000.0, 2: 192_000.0, 3: 208_000.0}
    disk = measured(points_of(rates.__getitem__, tuple(rates), busy=lambda n: 0.1))
    shown = " ".join(report(analysis_of(disk, target=FeedTarget(400_000, "here"))).split())
    assert "the maximum on this site by the law, 208,000 by a measurement" in shown


def test_what_was_not_measured_is_marked_as_extrapolated() -> None:
    naps = measured(points_of(lambda n: 2000.0 * n, busy=lambda n: 0.01 * n))
    assert "Beyond 4 tasks per machine the law is extrapolated." in report(analysis_of(naps))
    assert "extrapolated" not in report(analysis_of())


def test_batches_that_all_make_are_told() -> None:
    points = points_of(lambda n: 30_000.0, busy=lambda n: 0.1)
    shown = " ".join(report(analysis_of(measured(points, replayed=True))).split())
    assert "map load: 70% of the stages' time; each task makes all batches" in shown
    assert "Each task makes every batch, and drops those of the others." in shown
    assert "Limited by each streamer making every batch: shard the data" in shown
    assert "share a resource" not in shown


def test_points_that_scatter_are_to_be_measured_again() -> None:
    rates = {1: 100_000.0, 2: 60_000.0, 3: 190_000.0, 4: 90_000.0}
    scattered = measured(points_of(rates.__getitem__, tuple(rates)))
    assert "Measure again when nothing else runs" in report(analysis_of(scattered))
    assert "Measure again" not in report(analysis_of())


def test_what_other_work_took_is_told() -> None:
    taken = points_of(
        lambda n: 25_000.0 * n, (1, 2), busy=lambda n: n / 4, starved=lambda n: 3 * n / 4
    )
    shown = " ".join(report(analysis_of(measured(taken))).split())
    assert "2 1 50,000 200,000 200,000 +0.0%" in shown
    assert "Predictions assume the 25.0% of CPU time that was free." in shown
    assert "2 streamers deliver 50,000 samples/s" in shown
    on_nodes = " ".join(report(analysis_of(measured(taken), site=CLUSTER)).split())
    assert "the law is fitted to corrected rates. Measure again" in on_nodes
    assert "2 streamers deliver 200,000 samples/s: the target is reached." in on_nodes
    assert "Other processes" not in report(analysis_of())


def test_a_site_of_machines_is_told_how_nodes_add_up() -> None:
    shown = " ".join(report(analysis_of(site=CLUSTER)).split())
    assert "nodes add up, each counting as 4 of the measured machine, up to 47,770,701" in shown
    disk = measured(points_of(bound_by_cpus, busy=lambda n: 0.1))
    shown = " ".join(report(analysis_of(disk, site=CLUSTER)).split())
    assert "Nodes may share it, too" in shown


@pytest.mark.parametrize("stages", [STAGES, (), (StageCost("map " + "x" * 200, 1e-6, 0.0),)])
def test_without_a_terminal_every_character_of_the_plot_is_plain(
    stages: tuple[StageCost, ...],
) -> None:
    lines = report(analysis_of(measured(points_of(bound_by_cpus, stages=stages)))).splitlines()
    plot = lines[lines.index("Recommended") - 19 : lines.index("Recommended") - 1]
    assert all(line.isascii() for line in plot)
    assert sum("o" in line for line in plot) >= 2
    assert any("-----" in line for line in plot)
    own = [line for line in lines if not line.startswith("  csrun_wse")]
    assert max(map(len, own)) <= WIDTH


def test_a_narrow_terminal_wraps_a_table_and_cuts_no_number() -> None:
    out = StringIO()
    terminal.show(analysis_of(), Console(file=out, width=50, highlight=False, markup=False))
    points = out.getvalue().split("Measured\n")[1].split("Law")[0]
    assert "…" not in points
    assert points.splitlines()[2].split() == ["1", "1", "100,000", "100,000", "100,000", "+0.0%"]


def test_a_terminal_has_a_plot_of_dots() -> None:
    shown = report(analysis_of(), force_terminal=True)
    assert "●" in shown
    assert "⠒" in shown


def test_a_terminal_without_unicode_gets_none() -> None:
    out = BytesIO()
    ascii_only = TextIOWrapper(out, encoding="ascii", errors="strict")
    console = Console(file=ascii_only, width=WIDTH, force_terminal=True, highlight=False)
    terminal.show(analysis_of(), console)
    ascii_only.flush()
    assert b"  * law   o measured" in out.getvalue()


def test_the_json_has_all_of_it(tmp_path: Path) -> None:
    analysis = verified(
        analysis_of(), RECOMMENDED, DeliveredRate(160_000.0, 5.0, 2), BackgroundUse()
    )
    told = json.loads(analysis.write(tmp_path).read_text())
    assert told["solution"]["layout"] == msgspec.to_builtins(RECOMMENDED)
    assert told["launch"][:3] == ["csrun_wse", "--total-nodes", "1"]
    assert told["fits"][0]["law"]["name"] == "roofline"
    assert told["limiting"]["stage"]["name"] == "map load"
    assert told["verified"]["deviation"] == pytest.approx(-0.2)
    assert msgspec.convert(told, Analysis) == analysis


def test_a_run_is_shown_beside_its_prediction() -> None:
    analysis = verified(
        analysis_of(), RECOMMENDED, DeliveredRate(160_000.0, 5.0, 2), BackgroundUse()
    )
    expected = "on 1 node, 5 s: measured 160,000 samples/s, predicted 200,000 (-20.0%)"
    assert expected in " ".join(report(analysis).split())
    assert expected in web_page.render(analysis)
    assert "other processes" not in report(analysis)
    assert "Not verified" in report(analysis)
    assert "<strong>Not verified:</strong>" in web_page.render(analysis)
    near = verified(analysis_of(), RECOMMENDED, DeliveredRate(192_000.0, 5.0, 2), BackgroundUse())
    assert "Not verified" not in report(near)
    assert "Verified" in report(near)
    busy = verified(
        analysis_of(),
        RECOMMENDED,
        DeliveredRate(160_000.0, 5.0, 2),
        BackgroundUse(1.25, ("make", "cc1")),
    )
    assert "while other processes used 1.2 CPUs of this machine (make, cc1)" in " ".join(
        report(busy).split()
    )


def test_the_page_needs_nothing_beside_itself_and_names_are_text(tmp_path: Path) -> None:
    stages = (StageCost("map <b>load</b>", 1e-6, 0.0),)
    named = measured(points_of(bound_by_cpus, stages=stages), suggestions=("<script>",))
    page = web_page.write(analysis_of(named), tmp_path).read_text()
    assert not [part for part in ("http:", "https:", "src=", "href=", "<script") if part in page]
    assert "map &lt;b&gt;load&lt;/b&gt;" in page
