"""The chart in the terminal's characters."""

from csrun.advice.analysis.chart import Chart, Dot
from csrun.advice.analysis.wording import count

HEIGHT = 16
LEAST_WIDTH, MOST_WIDTH = 40, 100
#: The box-drawing characters of plotext's axes, where there is no Unicode.
PLAIN = str.maketrans("┌┐└┘├┤┬┴┼│─", "+++++++++|-")


def plot(chart: Chart, width: int, unicode: bool) -> str:
    """The curve, the points on it, and the target's line, with a legend below."""
    import plotext  # with a tenth of a second's worth of tables

    line, dot, level = ("braille", "●", "─") if unicode else ("*", "o", "-")
    figure = plotext.figure
    figure.clear()
    figure.plot_size(max(LEAST_WIDTH, min(width, MOST_WIDTH)), HEIGHT)
    figure.theme("colorless")
    if chart.target is not None:
        across = (Dot(chart.curve[0].tasks, chart.target), Dot(chart.most_tasks, chart.target))
        figure.draw(figure.signal(*_axes(across), marker=level).lines())
    figure.draw(figure.signal(*_axes(chart.curve), marker=line).lines())
    figure.draw(figure.signal(*_axes(chart.measured), marker=dot))
    figure.ruler("y").lim(0, 1.05 * chart.highest)
    figure.ruler("y").ticks(list(chart.rates_told), [count(rate) for rate in chart.rates_told])
    figure.ruler("x").ticks(list(chart.tasks_told))
    figure.label("samples/s against tasks of a machine")
    text = str(figure.build().string(colorless=True))
    key = f"  {'⠒' if unicode else line} law   {dot} measured"
    key += f"   {level} target with its margin" if chart.target is not None else ""
    return (text if unicode else text.translate(PLAIN)).rstrip("\n") + f"\n{key}"


def _axes(dots: tuple[Dot, ...]) -> tuple[list[float], list[float]]:
    return [dot.tasks for dot in dots], [dot.rate for dot in dots]
