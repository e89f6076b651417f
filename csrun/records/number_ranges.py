"""Ranges of a run's numbers relative to its 16-bit format, and their report number_ranges.html.

A number is damaged if the format cannot represent it with full precision: it overflows, is rounded
to zero, or is subnormal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import log2
from pathlib import Path

import numpy as np
import numpy.typing as npt

from csrun.base.files import write_atomic, writing
from csrun.base.half_formats import HalfFormat
from csrun.base.half_ranges import RangeCounts, range_counts

FILE = "number_ranges.html"
_MARGIN = 6  # powers of two that a picture shows on both sides of the format's
_LEAST_SHARE = 1e-4  # that is shown in digits
_HEIGHT, _BAR = 24, 3  # of a picture and of a bar, in pixels
_STYLE = """
body{font:14px system-ui,sans-serif;margin:2em}
table{border-collapse:collapse}
td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}
td:first-child,td:nth-child(2),th:first-child,th:nth-child(2){text-align:left}
.bad{color:#b00020}
rect.window{fill:#e3eefa}
rect.subnormal{fill:#fdf0d5}
rect.bar{fill:#33669a}
"""


@dataclass(frozen=True)
class NumberRanges:
    """Range statistics of one tensor's numbers, as shares of all; kind: weight, gradient or
    activation.

    zeros: exact zeros.
    flushed: other numbers that round to zero.
    overflows: numbers that round to infinity, or are not finite already.
    powers: finite numbers by binary exponent.
    """

    name: str
    kind: str
    zeros: float
    flushed: float
    subnormals: float
    overflows: float
    powers: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(name: str, kind: str, counts: RangeCounts) -> "NumberRanges":
        """Convert a tensor's counts to shares."""
        count = max(counts.count, 1)
        return NumberRanges(
            name,
            kind,
            zeros=counts.zeros / count,
            flushed=counts.flushed / count,
            subnormals=counts.subnormals / count,
            overflows=counts.overflows / count,
            powers=counts.powers,
        )

    @property
    def damage(self) -> tuple[float, float, float, float]:
        """Key to sort by, the most damaged last: lost numbers before imprecise ones."""
        return self.overflows, self.flushed, self.subnormals, self.zeros

    def scalars(self) -> dict[str, float]:
        """Return the shares by their names in the events."""
        shares = {"zeros": self.zeros + self.flushed, "subnormals": self.subnormals}
        shares["overflows"] = self.overflows
        return {f"ranges/{self.kind}/{self.name}/{name}": share for name, share in shares.items()}


def ranges_of(
    name: str, kind: str, values: npt.NDArray[np.generic], half: HalfFormat
) -> NumberRanges:
    """Measure one tensor of any shape, float32 or words of the format."""
    return NumberRanges.of(name, kind, range_counts(values, half))


def write_page(
    folder: Path, found: Sequence[NumberRanges], half: HalfFormat, step: int, scale: float | None
) -> None:
    """Write number_ranges.html, the most damaged tensor first.

    Raises: CsrunError if it cannot be written
    """
    path = folder / FILE
    with writing(path):
        write_atomic(path, page_of(found, half, step, scale).encode(), durable=False)


def page_of(found: Sequence[NumberRanges], half: HalfFormat, step: int, scale: float | None) -> str:
    """Return the page of the ranges after a step."""
    ordered = sorted(found, key=lambda each: each.damage, reverse=True)
    scaled = "" if scale is None else f", loss scale {scale:.12g}"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Number ranges</title>'
        f"<style>{_STYLE}</style><h1>Number ranges at global step {step}</h1>"
        f"<p>{escape(half.text)}: normal numbers from {half.smallest_normal:.4g} to "
        f"{half.largest:.6g}, subnormal ones from {half.smallest:.4g}{scaled}. The blue field is "
        "the normal range, the yellow one the subnormal; a bar counts numbers of one power of two, "
        f"from 2^{_first(half)} or less at the left to 2^{_last(half)} or more at the right."
        "</p><table><tr><th>tensor<th>kind<th>overflows<th>rounded to 0<th>subnormal<th>zero"
        f"<th>log2</tr>{''.join(_row(each, half) for each in ordered)}</table></html>"
    )


def _row(one: NumberRanges, half: HalfFormat) -> str:
    shares = one.overflows, one.flushed, one.subnormals, one.zeros
    marks = (' class="bad"' if share and number < 2 else "" for number, share in enumerate(shares))
    cells = "".join(f"<td{mark}>{_text(share)}" for mark, share in zip(marks, shares, strict=True))
    return f"<tr><td>{escape(one.name)}<td>{one.kind}{cells}<td>{_picture(one, half)}</tr>"


def _text(share: float) -> str:
    """A percentage; a share that is not zero does not read as zero."""
    return "&lt;0.01%" if 0 < share < _LEAST_SHARE else f"{share:.2%}"


def _first(half: HalfFormat) -> int:
    """The first power of two of a picture."""
    return int(log2(half.smallest)) - _MARGIN


def _last(half: HalfFormat) -> int:
    """The last power of two of a picture."""
    return int(log2(half.overflows_from)) + _MARGIN


def _picture(one: NumberRanges, half: HalfFormat) -> str:
    """Return a histogram of the powers of two, over the format's range."""
    least, normal, most = (
        int(log2(x)) for x in (half.smallest, half.smallest_normal, half.overflows_from)
    )
    first, last = _first(half), _last(half)
    parts = [
        _bar("subnormal", least - first, normal - least, _HEIGHT),
        _bar("window", normal - first, most + 1 - normal, _HEIGHT),
    ]
    bars = dict.fromkeys(range(first, last + 1), 0)
    for power, count in one.powers.items():
        bars[min(max(power, first), last)] += count
    tallest = max(bars.values()) or 1
    for power, count in bars.items():
        if count:
            parts.append(_bar("bar", power - first, 1, max(1, round(_HEIGHT * count / tallest))))
    width = _BAR * (last - first + 1)
    return f'<svg width="{width}" height="{_HEIGHT}">{"".join(parts)}</svg>'


def _bar(kind: str, place: int, count: int, height: int) -> str:
    return (
        f'<rect class="{kind}" x="{_BAR * place}" y="{_HEIGHT - height}" '
        f'width="{_BAR * count}" height="{height}"/>'
    )
