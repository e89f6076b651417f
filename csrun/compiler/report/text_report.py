"""compile_report.txt: the estimate, in the form that the original's users know."""

from collections.abc import Iterator, Sequence
from math import floor, log10
from textwrap import wrap

from csrun.base.sizes import size_text
from csrun.compiler.report.limit import Limit
from csrun.executable import Estimate, LayerEstimate, Parameter, nbytes_of

TEXT_FILE = "compile_report.txt"
DIGITS = 4  # significant digits, so that only zero shows as zero
LABEL_WIDTH = 30
WIDTH = 100  # width of prose


def text_report(
    estimate: Estimate,
    replicas: int,
    limit: Limit,
    parameters: Sequence[Parameter] = (),
    systems: int = 1,
    kernels: str = "",
    precision: str = "",
) -> str:
    """Return the report: the model and its limit, a row per layer, and the difference between both.

    Sharded parameters are listed, too. kernels: a sentence on their form. precision: types of
    arithmetic and of stored values.
    """
    lines = [
        "Estimated Overall Performance",
        "",
        *(f" {label + ':':<{LABEL_WIDTH}}{value}" for label, value in _head(estimate).items()),
        "",
        *_paragraph(limit.sentence),
        "",
        *(f" {line}" for line in _table(list(map(_row, estimate.layers)))),
        "",
        f" Replicas of the model: {replicas}. A row is one kernel over all replicas.",
        *([f" CS systems: {systems}. Rates are totals over all systems."] * (systems > 1)),
        *([f" Precision: {precision}."] if precision else ()),
        *_paragraph(limit.total),
        *_paragraph(limit.rates),
        *_paragraph(limit.micro_batches),
        *_paragraph(limit.recomputation),
        *_paragraph(kernels),
        *(line for text in _cut_tensors(parameters) for line in _paragraph(text)),
    ]
    return "\n".join(lines) + "\n"


def _cut_tensors(parameters: Sequence[Parameter]) -> Iterator[str]:
    parts: dict[str, list[Parameter]] = {}
    for p in parameters:
        if p.part is not None:
            parts.setdefault(p.part.tensor, []).append(p)
    for tensor, own in parts.items():
        size = size_text(sum(nbytes_of(p.shape, p.dtype) for p in own))
        what = "columns" if own[0].is_transposed else "rows"
        yield (
            f"{tensor} ({size}) exceeds max_group_bytes: it is streamed in {len(own)} shards of "
            f"up to {max(p.shape[0] for p in own):,} {what}, each as its own layer."
        )


def _paragraph(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=" ", subsequent_indent=" ")


def _head(estimate: Estimate) -> dict[str, str]:
    return {
        "Samples/s": _number(estimate.samples_per_sec),
        "Compute Samples/s": _number(estimate.compute_samples_per_sec),
        "Transmission Samples/s": _number(estimate.transmission_samples_per_sec),
        "Active PEs": _percent(estimate.active_pes),
        "Compute Utilization": _percent(estimate.compute_utilization),
    }


def _row(estimate: LayerEstimate) -> tuple[str, ...]:
    return (
        estimate.layer,
        _number(estimate.samples_per_sec),
        _number(estimate.compute_samples_per_sec),
        _number(estimate.transmission_samples_per_sec),
        str(estimate.active_pes),
        _percent(estimate.compute_utilization),
    )


COLUMNS = (
    "Kernel Name",
    "Samples/s",
    "Compute Samples/s",
    "Transmission Samples/s",
    "Active PEs",
    "Compute Utilization",
)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    return [rule, _cells(COLUMNS, widths), rule, *(_cells(row, widths) for row in rows), rule]


def _cells(cells: tuple[str, ...], widths: list[int]) -> str:
    """Align names to the left, numbers to the right."""
    first, *others = zip(cells, widths, strict=True)
    parts = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(parts)} |"


def _number(value: float) -> str:
    """Format without an exponent, with one decimal or as many as four digits need."""
    decimals = DIGITS - 1 - floor(log10(value)) if value else 1
    return f"{value:.{max(decimals, 1)}f}"


def _percent(share: float) -> str:
    return f"{_number(100 * share)}%"
