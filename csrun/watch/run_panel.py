"""Drawing of a run's progress: numbers, the loss as a sparkline, the ledger as bars."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from math import isfinite, log

from rich.segment import Segment

from csrun.base.safe_text import printable_line
from csrun.jobs.time_limit import format_duration
from csrun.watch.site_snapshot import RunProgress, TimeShare
from csrun.watch.text_lines import DIM, GAP, PLAIN, WARNING, Line, cut

SILENT_S = 10.0  # seconds without news of a running job that are mentioned
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
BAR, ASCII_BAR = ("█", "░"), ("#", ".")
BAR_WIDTH = 20
LEAST_SHARE = 0.005
DECADES = 100  # ratio of the largest to the smallest value from which the scale is logarithmic
_LABEL_WIDTH = 14
_DAY_S = 86_400
_MOST_DETAIL = 100


def run_lines(
    run: RunProgress, now: datetime | None, width: int, ascii_only: bool, is_short: bool = False
) -> list[Line]:
    """Return the lines of a run. now: for a running one; None for one that has ended.

    is_short: time by cause in one line, instead of a bar for each cause.
    """
    rows = [(label, value, PLAIN) for label, value in _lines(run, now, width, ascii_only)]
    if now is not None and run.updated is not None:
        silent_s = (now - run.updated).total_seconds()
        if silent_s >= SILENT_S:
            rows.insert(1, ("", f"no progress for {format_duration(silent_s)}", WARNING))
    if run.time:
        times = _time_line(run) if is_short else _time_bars(run, ascii_only)
        rows += [(label, value, PLAIN) for label, value in times]
    labels = max(len(label) for label, _, _ in rows)
    room = max(0, width - labels - GAP)
    return [
        [Segment(f"{label:{labels + GAP}}", DIM), Segment(cut(value, room), style)]
        for label, value, style in rows
    ]


def _time_line(run: RunProgress) -> list[tuple[str, str]]:
    shares = (f"{_name(share)} {share.share:.0%}" for share in _shown(run))
    return [("time", ", ".join(shares))]


def _time_bars(run: RunProgress, ascii_only: bool) -> list[tuple[str, str]]:
    since = f"since step {run.losses[0].step:,}" if run.losses else ""
    bars = [
        (f"  {_name(share)}", f"{bar(share.share, BAR_WIDTH, ascii_only)} {share.share:4.0%}")
        for share in _shown(run)
    ]
    return [("time", since), *bars]


def _shown(run: RunProgress) -> list[TimeShare]:
    """Return the rows of more than 0 %."""
    return [share for share in run.time if share.share >= LEAST_SHARE]


def _name(share: TimeShare) -> str:
    return share.row.replace("_", " ")


def _lines(
    run: RunProgress, now: datetime | None, width: int, ascii_only: bool
) -> list[tuple[str, str]]:
    of = "" if run.last_step is None else f" of {run.last_step:,}"
    done = ""
    if run.last_step:
        done = f"  {bar(run.step / run.last_step, BAR_WIDTH, ascii_only)}"
        done += f" {run.step / run.last_step:.0%}"
    lines = [(printable_line(run.what[:_LABEL_WIDTH]), f"step {run.step:,}{of}{done}")]
    if run.steps_per_s is not None:
        lines.append(("speed", f"{short(run.steps_per_s)} steps/s{_end(run, now)}"))
    if run.rate is not None and run.global_rate is not None:
        rates = f"Rate {short(run.rate)}, GlobalRate {short(run.global_rate)} samples/s"
        lines.append(("rates", rates))
    if run.loss is not None:
        losses = [point.loss for point in run.losses]
        room = max(10, width - 2 * _LABEL_WIDTH - 4)
        lines.append(("loss", f"{run.loss:<10.5g} {sparkline(losses, room, ascii_only)}".rstrip()))
    elif run.detail:
        lines.append(("", printable_line(run.detail[:_MOST_DETAIL])))
    if run.loss_scale is not None:
        lines.append(("loss scale", f"{run.loss_scale:,.6g}"))
    if run.input_share is not None:
        lines.append(("input", f"waited {run.input_share:.0%} of the time for batches"))
    return lines


def _end(run: RunProgress, now: datetime | None) -> str:
    if run.ends is None or now is None:
        return ""
    left = max(0.0, (run.ends - now).total_seconds())
    date = "%Y-%m-%d %H:%M" if left >= _DAY_S else "%H:%M:%S"
    return f", ends {run.ends.astimezone():{date}} (in {format_duration(left)})"


def short(number: float) -> str:
    """Round a rate so that its digits do not change in every frame."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def bar(share: float, width: int, ascii_only: bool) -> str:
    """Return a bar for a share from 0 to 1."""
    full, empty = ASCII_BAR if ascii_only else BAR
    cells = round(max(0.0, min(1.0, share)) * width)
    return full * cells + empty * (width - cells)


def sparkline(values: Sequence[float], width: int, ascii_only: bool) -> str:
    """Return values as a line of blocks of eight heights; many values are averaged.

    Heights are logarithmic if the values span more than two decades. A value that is not finite is
    a space.
    """
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    means = _means(values, width)
    finite = [value for value in means if isfinite(value)]
    if not finite:
        return ""
    if min(finite) > 0 and max(finite) > DECADES * min(finite):
        means = [log(value) if isfinite(value) else value for value in means]
        finite = [value for value in means if isfinite(value)]
    low, high = min(finite), max(finite)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        blocks[round((value - low) * scale)] if isfinite(value) else " " for value in means
    )


def _means(values: Sequence[float], count: int) -> list[float]:
    """Return means of `count` groups of neighbours; the values themselves if there are no more."""
    if len(values) <= count:
        return list(values)
    bounds = [len(values) * index // count for index in range(count + 1)]
    groups = [values[begin:end] for begin, end in pairwise(bounds)]
    return [sum(group) / len(group) for group in groups]
