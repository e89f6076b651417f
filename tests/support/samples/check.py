"""The samples of a row in all ways, compiled and interpreted, against PyTorch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from support.samples.database import operator, samples, tolerances, torch
from support.samples.row import Noted, Row, Skipped
from support.samples.running import Found, Sample, Way, Written, compare, expected
from support.samples.table import REFUSED, SAMPLES

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode

CHUNK = 8  # samples of a program
TRACED = 60  # samples of an element type, at most
NEARER = 4.0  # how much further from float64's result than PyTorch's own a result may be


@dataclass
class Outcome:
    """Which entries of the tables of skips were met, and what was wrong."""

    met: set[tuple[str, str]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def refuse(self, row: Row, error: UsageError, sample: Sample) -> None:
        """Note a refusal, which the table must have."""
        found = [k for k in REFUSED if k[0] == str(row) and k[1] in str(error)]
        self.met.update(found)
        if not found:
            self.wrong.append(f"refused, and not in REFUSED: {error}: {_text(sample)}")

    def skip(self, row: Row, reason: str) -> None:
        """Note a skip, which the table must have."""
        self.met.add((str(row), reason))
        if (str(row), reason) not in SAMPLES:
            self.wrong.append(f"skipped for {reason!r}, which is not in SAMPLES")


def check_row(row: Row, root: Path, most: int, every: bool, noted: Noted) -> Outcome:
    """Check a row: trace all samples, and compute at most `most` of each element type."""
    outcome, folder = Outcome(), _folders(root)
    for dtype in (*row.floats, *row.dtypes):
        found = list(traceable(row, dtype, noted, outcome))
        chosen = spread(found, most)
        precision = dtype if dtype in row.floats else "float32"
        tolerance = tolerances(row.name, row.variant, dtype) if dtype in row.floats else {}
        for way in ways_of(chosen, dtype, every):
            for at in range(0, len(chosen), CHUNK):
                part = chosen[at : at + CHUNK]
                _check(row, part, way, precision, tolerance, folder, outcome)
    return outcome


def traceable(row: Row, dtype: str, noted: Noted, outcome: Outcome) -> Iterator[Sample]:
    """The samples that csrun can express and does not refuse while it traces."""
    theirs = operator(row.name, row.variant).op
    has_gradient = row.has_gradient and dtype in row.floats
    for found in spread(samples(row.name, row.variant, dtype), TRACED):
        arguments = ((found.input, *found.args), found.kwargs)
        sample = Sample(theirs, partial(row.ours, noted), arguments, has_gradient)
        precision = dtype if dtype in row.floats else "float32"
        if not sample.tensors:  # nothing to trace
            continue
        try:
            Written([sample], Way.INPUTS, precision)
        except Skipped as reason:
            outcome.skip(row, str(reason))
        except UsageError as error:
            outcome.refuse(row, error, sample)
        else:
            yield sample


def spread(found: Sequence[Any], most: int) -> list[Any]:
    """At most this many, the first and the last among them."""
    if len(found) <= most:
        return list(found)
    return [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]


def ways_of(found: Sequence[Sample], dtype: str, every: bool) -> tuple[Way, ...]:
    """All of them, or some in each type; inputs alone where nothing has a gradient."""
    if not any(s.has_gradient and s.tensors for s in found):
        return (Way.INPUTS,)
    if every:
        return tuple(Way)
    return (Way.FIRST,) if dtype == "float32" else (Way.ACTIVATIONS, Way.VIEWS)


def _check(
    row: Row,
    part: Sequence[Sample],
    way: Way,
    precision: str,
    tolerance: dict[str, float],
    folder: Iterator[Path],
    outcome: Outcome,
) -> None:
    """One program; where it does not compile, one for each sample."""
    mode = ExecutionMode.WEIGHT_STREAMING if way is Way.PARAMETERS else ExecutionMode.PIPELINED
    try:
        written = Written(part, way, precision)
        compiled = written.compiled(next(folder), mode)
        interpreted = written.interpreted()
    except Exception as error:
        if len(part) > 1:
            for sample in part:
                _check(row, [sample], way, precision, tolerance, folder, outcome)
        elif isinstance(error, UsageError):
            outcome.refuse(row, error, part[0])
        else:
            outcome.wrong.append(f"{way}: {error!r}: {_text(part[0])}")
        return
    for number, sample in enumerate(part):
        for what, found in (("compiled", compiled), ("interpreted", interpreted)):
            complaint = _complaint(found, number, sample, way, written, tolerance)
            if complaint:
                outcome.wrong.append(f"{what}, {way}, {precision}: {complaint}: {_text(sample)}")


def _complaint(
    found: Found, number: int, sample: Sample, way: Way, written: Written, tolerance: dict
) -> str:
    """What is not as PyTorch has it, or ''."""
    slope = written.slopes[number]
    results, gradients = expected(sample, way, slope)
    ours = [*found.results[number], *found.gradients[number].values()]
    given = found.gradients[number]
    missing = [place for place, g in gradients.items() if place not in given and g.any()]
    if missing:
        return f"operand {missing[0]} has no gradient"
    theirs = [*results, *(gradients[place] for place in given)]
    if len(ours) != len(theirs):
        return f"{len(ours)} results, PyTorch has {len(theirs)}"
    for place, (own, peer) in enumerate(zip(ours, theirs, strict=True)):
        try:
            compare(own, peer, tolerance)
        except AssertionError as error:
            if own.dtype == "float32" and own.shape == tuple(peer.shape):
                exact = expected(sample.doubled(), way, slope.astype("float64"))
                best = [*exact[0], *(exact[1][p] for p in given)][place]
                if _is_nearer(torch.from_numpy(own), peer, best):
                    continue
            return str(error).replace("\n", " ")
    return ""


def _is_nearer(own, peer, best) -> bool:
    """Whether float64's result is about as near as PyTorch's own is, in float32."""
    off, theirs = (own - best).abs().max(), (peer - best).abs().max()
    return bool(off <= NEARER * theirs)


def _text(sample: Sample) -> str:
    """The sample's arguments, tensors by their shapes."""
    shapes = [f"{str(t.dtype)[6:]}{list(t.shape)}" for t in sample.tensors]
    return repr(sample.with_tensors(shapes))


def _folders(root: Path) -> Iterator[Path]:
    number = 0
    while True:
        yield root / str(number)
        number += 1
