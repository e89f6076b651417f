"""Seeded random programs over csrun.nn, and the same in PyTorch.

A program is statements; each takes earlier values, all of them [B, ...], and gives one more. Values
0 and 1 are the features [B, 3, 4] and the rows of a table that the tokens [B, 3] name, whose
mean is part of each loss.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

FEATURES, TOKENS, CLASSES = 12, 3, 5
OF_TOKENS = ("cross_entropy", "gather")  # functions that take the tokens, too
Tail = tuple[int, ...]


@dataclass(frozen=True)
class Statement:
    """A function by its name, earlier values by their numbers, and its options."""

    function: str
    operands: tuple[int, ...]
    options: tuple[Any, ...] = ()

    def __str__(self) -> str:
        values = [f"v{operand}" for operand in self.operands]
        return f"{self.function}({', '.join([*values, *map(repr, self.options)])})"


@dataclass(frozen=True)
class Program:
    """Statements by the number of their value, and the values whose means are the loss."""

    seed: int
    statements: dict[int, Statement]
    results: tuple[int, ...]

    def __str__(self) -> str:
        lines = [f"v{number} = {each}" for number, each in self.statements.items()]
        means = " + ".join(f"mean(v{number})" for number in (1, *self.results))
        return "\n".join([f"seed {self.seed}", *lines, f"loss = {means}"])

    def numbers_of(self, function: str) -> tuple[int, ...]:
        """The values that a function gives; those of dropout are shown, for their masks."""
        return tuple(n for n, each in self.statements.items() if each.function == function)

    def run(self, f: Any, features: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
        """The loss and the results, with the functions of `f`."""
        values = {0: f.reshape(features, (3, 4)), 1: f.embedding(labels, 1)}
        for number, each in self.statements.items():
            operands = [values[operand] for operand in each.operands]
            more = (labels,) if each.function in OF_TOKENS else ()
            values[number] = getattr(f, each.function)(*operands, *each.options, *more)
        terms = [f.mean_of_all(values[number]) for number in (1, *self.results)]
        shown = (*self.results, *(n for n in self.numbers_of("dropout") if n not in self.results))
        outputs = {f"v{n}": values[n] for n in shown if len(values[n].shape)}
        return sum(terms[1:], start=terms[0]), outputs


def minimized(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program without the results and statements that it fails without, too."""
    found = True
    while found:
        found = False
        for smaller in _smaller(program):
            if fails(smaller):
                program, found = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for result in program.results:
        others = tuple(r for r in program.results if r != result)
        before = program.statements[result].operands if result in program.statements else ()
        for results in (others, (*others, *before)):
            if results and set(results) != set(program.results):
                yield _alive(replace(program, results=tuple(dict.fromkeys(results))))
    for number, each in program.statements.items():
        for operand in each.operands:
            yield _alive(_without(program, number, operand))


def _without(program: Program, number: int, operand: int) -> Program:
    """One of a statement's operands in the statement's place."""
    names = {number: operand}
    statements = {
        n: replace(each, operands=tuple(names.get(o, o) for o in each.operands))
        for n, each in program.statements.items()
        if n != number
    }
    results = dict.fromkeys(names.get(result, result) for result in program.results)
    return replace(program, statements=statements, results=tuple(results))


def _alive(program: Program) -> Program:
    """Without what no result needs."""
    needed = set(program.results)
    for number in sorted(program.statements, reverse=True):
        if number in needed:
            needed.update(program.statements[number].operands)
    kept = {n: each for n, each in program.statements.items() if n in needed}
    return replace(program, statements=kept)
