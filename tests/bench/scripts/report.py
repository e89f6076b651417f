"""Outcomes as tables: Markdown for docs/pytorch.md, lines for the terminal, one for menders."""

import re
from collections import Counter
from pathlib import Path

from outcome import OTHER_DRAWS, Outcome, Verdict
from sides import JOBS, Side

_WITHOUT_MESSAGE = (
    Verdict.RUNS,
    Verdict.IN_FLOAT64,
    Verdict.UNSTABLE,
    Verdict.NOT_AVAILABLE,
)
_PLURALS = {
    Verdict.RUNS: "run",
    Verdict.DIFFERS: "differ",
    Verdict.CRASHES: "crash",
    Verdict.TIMES_OUT: "time out",
    Verdict.PLAIN_FAILS: "fail in plain PyTorch",
}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "pytorch.md"
BEGIN, END = "<!-- scripts: written by `scripts/bench scripts --write` -->", "<!-- /scripts -->"
HEAD = [
    "| script | source | + | outcome | jobs | path | losses | steps/s |",
    "|---|---|---|---|---|---|---|---|",
]


def markdown(outcomes: list[Outcome], machine: str) -> str:
    """The table of docs/pytorch.md: a row a case, of all ways of running."""
    rows = [
        f"| {o.case} | {o.source} | {o.lines_beyond or ''} | {o.verdict.value}{_where(o)} "
        f"| {_in_jobs(o, outcomes)} | {_path(o)} | {_difference(o)} | {_ratio(o)} |"
        for o in outcomes
        if o.side is Side.PYTHON
    ]
    return "\n".join([summary(outcomes), "", machine, "", *HEAD, *rows])


def _in_jobs(alone: Outcome, outcomes: list[Outcome]) -> str:
    """How a case ends in jobs, where that is otherwise than in one process."""
    jobs = {o.side: o.verdict for o in outcomes if o.case == alone.case and o is not alone}
    if set(jobs.values()) == {alone.verdict} and len(jobs) == len(JOBS):
        return "same"
    if not jobs:
        return "not measured"
    return ", ".join(f"`{side.value}` {jobs[side].value}" for side in JOBS if side in jobs)


def write(outcomes: list[Outcome], machine: str) -> None:
    """Replace the table between the markers of docs/pytorch.md."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    table = markdown(outcomes, machine)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


def line(outcome: Outcome) -> str:
    """One outcome for the terminal."""
    found = f"{outcome.case:38} {outcome.side.value:10} {outcome.verdict.value:14}"
    if outcome.loss_difference is not None:
        found += f" losses {outcome.loss_difference:.1e} weights {outcome.weight_difference:.1e}"
        found += f" {outcome.steps} steps, {outcome.ratio:.2f} of PyTorch's steps/s"
    return f"{found} {outcome.message}".rstrip()


def summary(outcomes: list[Outcome]) -> str:
    """How many of the cases run, for each way of running."""
    sides: dict[Side, Counter[Verdict]] = {}
    for outcome in outcomes:
        sides.setdefault(outcome.side, Counter())[outcome.verdict] += 1
    return "; ".join(
        f"`{side.value}`: "
        + ", ".join(f"{count} {_verb(verdict, count)}" for verdict, count in counts.items())
        for side, counts in sides.items()
    )


def _verb(verdict: Verdict, count: int) -> str:
    return verdict.value if count == 1 else _PLURALS.get(verdict, verdict.value)


def refusals(outcomes: list[Outcome]) -> str:
    """Name, outcome, message, and the line that the message names."""
    head = ["| name | runs? | message | line |", "|---|---|---|---|"]
    rows = []
    for o in outcomes:
        place = re.search(r"[\w./-]+\.py:\d+", o.message)
        message = o.message.replace("|", "\\|")
        detail = "" if o.loss_difference is None else f"losses {o.loss_difference:.1e} "
        side = "" if o.side is Side.PYTHON else f" ({o.side.value})"
        rows.append(
            f"| {o.case}{side} | {o.verdict.value} | {detail}{message} "
            f"| {place[0] if place else ''} |"
        )
    return "\n".join([summary(outcomes), "", *head, *rows]) + "\n"


def _where(outcome: Outcome) -> str:
    if outcome.verdict in _WITHOUT_MESSAGE or not outcome.message:
        return ""
    message = re.sub(r"^(\S+: )?error: ", "", outcome.message).replace("|", "\\|")
    message = re.sub(r"/\S*/tests/bench/scripts/", "", message)
    return f": `{message[:110]}`"


def _path(outcome: Outcome) -> str:
    if outcome.recorded is None:
        return ""
    return "recorded" if outcome.recorded else "fast"


def _difference(outcome: Outcome) -> str:
    if outcome.loss_difference is None:
        return ""
    if outcome.message == OTHER_DRAWS:
        return "own draws"
    found = [outcome.loss_difference, outcome.float64_difference, outcome.noise_difference]
    return ", ".join(f"{each:.0e}" for each in found if each is not None)


def _ratio(outcome: Outcome) -> str:
    return "" if not outcome.ratio else f"{outcome.ratio:.2f}"
