"""Real PyTorch scripts on csrun beside plain PyTorch: `scripts/bench scripts [options] [WORD...]`.

Every case whose name contains a word runs STEPS steps in plain PyTorch, where `cerebras_torch` is a
stub whose calls do nothing, and on csrun. Losses are compared step by step, then the weights.
Results are kept in the cache, so that a part may be measured again; --write puts all of them into
docs/pytorch.md.
"""

import argparse
import re
import tempfile
from pathlib import Path

import msgspec
import report
import sources
from case import Case, Package
from hugging_face import CASES as HUGGING_FACE
from karpathy import CASES as KARPATHY
from outcome import Outcome, Verdict, measure_all
from packages import CASES as PACKAGES
from pytorch_examples import CASES as EXAMPLES
from sides import Runner, Side
from tutorials import CASES as TUTORIALS

CASES: tuple[Case, ...] = (*HUGGING_FACE, *PACKAGES, *KARPATHY, *EXAMPLES, *TUTORIALS)
RESULTS = sources.CACHE / "outcomes.json"
DEFAULT_STEPS = 20


def main() -> None:
    options = read_options()
    chosen = [case for case in CASES if chosen_by(case, options.words)]
    missing = {case.name: message for case in chosen if (message := install_for(case))}
    sides = [Side(name) for name in options.side]
    with (
        tempfile.TemporaryDirectory(prefix="csrun-bench-") as made,
        Runner(options.steps, options.threads) as runner,
    ):
        for case in chosen:
            if case.name in missing:
                outcomes = [not_available(case, side, missing[case.name]) for side in sides]
            else:
                outcomes = measure_all(runner, case, sides, Path(made) / "case")
            print(*map(report.line, outcomes), sep="\n", flush=True)
            add_outcomes(outcomes, options.outcomes)
    ordered = in_order(read_outcomes())
    print(report.summary(ordered))
    if options.write:
        report.write(ordered, machine(options))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench scripts", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="parts of the names of cases")
    ways = [side.value for side in Side if side is not Side.PLAIN]
    parser.add_argument("--side", action="append", choices=ways, help="default: python")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, on both sides")
    parser.add_argument("--write", action="store_true", help="write the table of docs/pytorch.md")
    parser.add_argument("--outcomes", type=Path, help="file for all messages, as Markdown")
    options = parser.parse_args()
    options.side = options.side or [Side.PYTHON.value]
    return options


def chosen_by(case: Case, words: list[str]) -> bool:
    return not words or any(word.lower() in case.name.lower() for word in words)


def install_for(case: Case) -> str:
    """Install what a case imports; the message where that cannot be had."""
    wanted = case.source.installed if isinstance(case.source, Package) else ()
    try:
        for requirement in (*wanted, *case.requirements):
            sources.install(requirement)
    except sources.NotAvailableError as error:
        return str(error)
    return ""


def not_available(case: Case, side: Side, message: str) -> Outcome:
    name = case.source.name
    return Outcome(case.name, name, side, Verdict.NOT_AVAILABLE, case.lines_beyond, message)


def in_order(outcomes: list[Outcome]) -> list[Outcome]:
    """Outcomes of known cases, the last of each, in the order of the table."""
    found = {(o.case, o.side): o for o in outcomes}
    keys = [(case.name, side) for case in CASES for side in Side]
    return [found[key] for key in keys if key in found]


def read_outcomes() -> list[Outcome]:
    if not RESULTS.exists():
        return []
    return msgspec.json.decode(RESULTS.read_bytes(), type=list[Outcome])


def add_outcomes(outcomes: list[Outcome], page: Path | None) -> None:
    """Add outcomes to those in the cache, which another run may have changed meanwhile."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    found = {(o.case, o.side): o for o in [*read_outcomes(), *outcomes]}
    RESULTS.write_bytes(msgspec.json.encode(list(found.values())))
    if page is not None:
        page.write_text(report.refusals(in_order(list(found.values()))))


def machine(options: argparse.Namespace) -> str:
    """Processor and settings of the run."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    name = found[1] if found else "an unknown processor"
    return f"{options.steps} steps on {name}, PyTorch with {options.threads} thread(s)."


if __name__ == "__main__":
    main()
