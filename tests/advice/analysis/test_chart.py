"""Plotted values: the numbers of the tables."""

import pytest
from support.pipelines import CLUSTER, analysis_of, bound_by_cpus, measured, points_of

from csrun.advice.analysis.chart import chart_of

DISTURBED = points_of(  # other work took a part of the CPUs, of each point another
    lambda n: bound_by_cpus(n) * (1 - n / 20), busy=lambda n: min(n, 2.0) * (1 - n / 20),
    starved=lambda n: n * n / 20,
)  # fmt: skip


@pytest.mark.parametrize("column", ["measured", "undisturbed"])
def test_dots_are_numbers_of_the_table_of_points(column: str) -> None:
    site = {} if column == "measured" else {"site": CLUSTER}
    analysis = analysis_of(measured(DISTURBED), **site)
    table = [(point.tasks, getattr(point, column)) for point in analysis.fit.points]
    assert [(dot.tasks, dot.rate) for dot in chart_of(analysis).measured] == table


def test_the_recommended_one_is_drawn_at_what_it_is_said_to_deliver() -> None:
    analysis = analysis_of()
    shown, layout = chart_of(analysis).recommended, analysis.solution.layout
    assert (shown.tasks, shown.rate) == (layout.streamers, layout.samples_per_s)


def test_ticks_are_whole_tasks_and_round_rates() -> None:
    chart = chart_of(analysis_of())
    assert chart.tasks_ticks == (1, 2, 3, 4)
    assert chart.rate_ticks == (0, 50_000, 100_000, 150_000, 200_000)
