"""Fusion of consecutive calls of machine code into one call (a stretch).

    run_dense_mm()                  stretch_0(labels)
    run_dense_relu()
    run_log_softmax(labels)

program.py has one line per kernel, and a call from Python takes about as long as a small kernel.
When the program is loaded with machine code, the lines of a stretch are replaced by one call: it
sets all arguments first, then runs the jobs of all kernels in order.
"""

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise

from csrun.executable.bound_kernel import BoundKernel
from csrun.executable.team import BoundCall, joined_jobs

JOIN = "join_calls"
_STEP = "step"
_MOST_CALLS = 16  # maximum calls of a stretch: signals are handled after it
Call = Callable[..., None]


def with_stretches(program: str, functions: Collection[str]) -> ast.Module:
    """Return the program with stretches; functions: those that may have machine code."""
    tree = ast.parse(program)
    for binder in tree.body:
        if isinstance(binder, ast.FunctionDef):
            _join_calls(binder, functions)
    return tree


def _join_calls(binder: ast.FunctionDef, functions: Collection[str]) -> None:
    """Replace the stretches in the inner functions of a function."""
    bound, body, count = set[str](), list[ast.stmt](), 0
    for statement in binder.body:
        match statement:
            case ast.Assign([ast.Name(variable)], ast.Call(ast.Name(function))):
                bound |= {variable} if function in functions else set()
            case ast.FunctionDef():
                pieces = list(_pieces(statement.body, bound))
                for piece in pieces:
                    if len(piece) > 1:
                        name, count = f"stretch_{count}", count + 1
                        definition, *piece[:] = _joined_lines(name, piece)
                        body.append(definition)
                statement.body = list(chain.from_iterable(pieces))
        body.append(statement)
    binder.body = body


def _pieces(lines: Sequence[ast.stmt], bound: Collection[str]) -> Iterator[list[ast.stmt]]:
    """Return the lines of a function, with the calls of a stretch grouped."""
    for is_call, group in groupby(lines, lambda line: _is_bound(line, bound)):
        own, count = list(group), _MOST_CALLS if is_call else 1
        yield from (own[first : first + count] for first in range(0, len(own), count))


def _is_bound(statement: ast.stmt, bound: Collection[str]) -> bool:
    """Return whether a line calls a bound function with arguments that no kernel computes."""
    match statement:
        case ast.Expr(ast.Call(ast.Name(name), arguments, [])) if name in bound:
            return not any(map(_reads_elements, arguments))
    return False


def _reads_elements(argument: ast.expr) -> bool:
    """Return whether an argument is computed from elements of an array."""
    subscripts = (node for node in ast.walk(argument) if isinstance(node, ast.Subscript))
    return any(
        not isinstance(s.value, ast.Attribute)
        or not isinstance(s.value.value, ast.Name)
        or s.value.value.id != _STEP
        for s in subscripts
    )


def _joined_lines(name: str, lines: Sequence[ast.stmt]) -> tuple[ast.stmt, ast.stmt]:
    """Return `name = join_calls((call, ...), (argument count, ...))`, and `name(arguments)`."""
    values = [line.value for line in lines if isinstance(line, ast.Expr)]
    calls = [value for value in values if isinstance(value, ast.Call)]
    functions = ast.Tuple([call.func for call in calls], ast.Load())
    counts = ast.Tuple([ast.Constant(len(call.args)) for call in calls], ast.Load())
    joined = ast.Call(ast.Name(JOIN, ast.Load()), [functions, counts], [])
    arguments = [argument for call in calls for argument in call.args]
    own = ast.Call(ast.Name(name, ast.Load()), arguments, [])
    definition = ast.Assign([ast.Name(name, ast.Store())], joined)
    return _at(definition, lines[0]), _at(ast.Expr(own), lines[0])


def _at(statement: ast.stmt, line: ast.stmt) -> ast.stmt:
    """The statement, which stands for a line; only new nodes lack a place: a program is long."""
    return ast.fix_missing_locations(ast.copy_location(statement, line))


def join_calls(calls: Sequence[Call], counts: Sequence[int]) -> Call:
    """Return one function that makes all calls; consecutive calls of machine code become one.

    counts: number of arguments of each call.
    """
    parts: list[tuple[Call, slice]] = []
    places = list(map(slice, *zip(*pairwise(accumulate(counts, initial=0)), strict=True)))
    pairs = list(zip(calls, places, strict=True))
    for is_code, group in groupby(pairs, lambda pair: isinstance(pair[0], BoundCall | BoundKernel)):
        own = list(group)
        parts += [_joined(own)] if is_code else own
    if len(parts) == 1:
        return parts[0][0]

    def run(*values: object) -> None:
        for part, place in parts:
            part(*values[place])

    return run


def _joined(pairs: Sequence[tuple[Call, slice]]) -> tuple[Call, slice]:
    """Return one call of all jobs, with the positions of its arguments."""
    start, stop = pairs[0][1].start, pairs[-1][1].stop
    runs = [call.run if isinstance(call, BoundKernel) else call for call, _ in pairs]
    run = joined_jobs(runs)  # type: ignore[arg-type]
    # Also those without arguments: numbers of a run may change between two calls.
    kernels = [
        (call.set_arguments, slice(own.start - start, own.stop - start))
        for call, own in pairs
        if isinstance(call, BoundKernel)
    ]

    def set_and_run(*values: object) -> None:
        kept = [set_arguments(*values[own]) for set_arguments, own in kernels]
        run()
        del kept  # keep copied inputs alive

    return set_and_run if kernels else run, slice(start, stop)
