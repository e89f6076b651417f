"""Report as text, between the banners of the Cerebras release."""

from collections.abc import Sequence

from csrun.advice.input_fn_report.finding import Finding, Severity
from csrun.advice.input_fn_report.pipeline import Pipeline
from csrun.data.input_operators import InputOperator
from csrun.runtime.input_bound import streamers_needed

TEXT_FILE = "input_fn_report.txt"
BEGIN = "Suggestions to improve input_fn performance"
END = "End of input_fn suggestions"
CALL_WIDTH = 64
NOTHING = "Nothing to improve was found."


def report_text(pipeline: Pipeline, findings: Sequence[Finding]) -> str:
    """Return the report file: suggestions, then a table of the pipeline."""
    lines = [suggestions_text(findings), "", *_table(pipeline), "", rate_text(pipeline)]
    return "\n".join(lines).rstrip() + "\n"


def suggestions_text(findings: Sequence[Finding]) -> str:
    """Return the suggestions, most important first."""
    parts = [line for finding in findings for line in _lines(finding)] or [f" {NOTHING}"]
    return "\n".join([BEGIN, *_count(findings), *parts, END])


def rate_text(pipeline: Pipeline) -> str:
    """Compare the rate of a streamer with that of the system; empty if it was not measured."""
    rate, wanted = pipeline.samples_per_s(), pipeline.wanted_per_s
    if rate is None:
        return ""
    delivers = f"One streamer delivers about {rate:,.0f} samples/s on this machine"
    if not wanted:
        return f"{delivers}."
    needed = streamers_needed(wanted, rate)
    feed = f"{needed} streamers are needed" if needed > 1 else "one streamer is enough"
    if needed > 1 and pipeline.replayed:
        feed = "more streamers do not help, as each makes all batches"
    return f"{delivers}; the CS system is estimated to consume {wanted:,.0f}: {feed}."


def _count(findings: Sequence[Finding]) -> list[str]:
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    counts = [_counted(warnings, "warning"), _counted(len(findings) - warnings, "hint")]
    said = ", ".join(count for count in counts if count)
    return [f" {said}, sorted by gain"] if len(findings) > 1 else []


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}" if number else ""


def _lines(finding: Finding) -> list[str]:
    where = f", {finding.operator.where}" if finding.operator.where else ""
    lines = [
        f"[input_fn] - {finding.about}(): {finding.law} ({finding.severity}{where})",
        f"    now:    {finding.now}",
        f"    change: {finding.change}",
    ]
    return [*lines, f"    gain:   {finding.saves}"] if finding.saves else lines


def _table(pipeline: Pipeline) -> list[str]:
    """Return a row per operator, with its time per batch if measured."""
    head, rows = ["operator", "where", "works on"], []
    if pipeline.costs:
        head += ["ms per batch", "share"]
    for operator in pipeline.operators:
        row = [_call(operator), operator.where or "-", operator.level]
        rows.append(row + (_cost(pipeline, operator) if pipeline.costs else []))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return ["Input pipeline", "", *(_cells(row, widths) for row in [head, *rows])]


def _cells(cells: list[str], widths: list[int]) -> str:
    texts = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return f" {'  '.join(texts + numbers)}".rstrip()


def _call(operator: InputOperator) -> str:
    given = [
        str(value) if name == "function" else f"{name}={value}"
        for name, value in operator.options.items()
        if value is not None
    ]
    call = f"{operator.name}({', '.join(given)})"
    return call if len(call) <= CALL_WIDTH else f"{call[: CALL_WIDTH - 1]}…"


def _cost(pipeline: Pipeline, operator: InputOperator) -> list[str]:
    cost, share = pipeline.costs.get(operator.stage), pipeline.share(operator)
    if cost is None or share is None:
        return ["-", "-"]
    return [pipeline.ms(operator, cost.wall_s, 3), f"{share:.0%}"]
