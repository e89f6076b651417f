"""Fusion of consecutive calls of machine code into one call (a stretch).

    run_dense_mm()                  stretch_0(labels)
    run_dense_relu()
    run_log_softmax(labels)

program.py has one line per kernel, and a call from Python takes about as long as a small kernel.
When the program is loaded with machine code, the lines of a stretch are replaced by one call: it
sets all arguments first, then runs the jobs of all kernels in order.

A visit that only calls kernels, and passes them arrays of the batch, is then bound to each batch:

    def forward_0_inputs(batch):
        labels, = batch
        return (labels,)
    def forward_0_numbers(step):
        return ()
    forward_0 = bind_batches(forward_0, ((run_dense_mm, 0, 0), ...), forward_0_inputs, ...)
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby, pairwise, takewhile

from csrun.executable.bound_kernel import BoundKernel
from csrun.executable.team import BoundCall, joined_jobs

JOIN, BIND = "join_calls", "bind_batches"
_BATCH, _STEP = "batch", "step"
MOST_CALLS = 16  # maximum calls of a stretch: signals are handled after it
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
                visit = _VisitCalls.of(statement, bound)
                pieces = list(_pieces(statement.body, bound))
                for piece in pieces:
                    if len(piece) > 1:
                        name, count = f"stretch_{count}", count + 1
                        definition, *piece[:] = _joined_lines(name, piece)
                        body.append(definition)
                statement.body = list(chain.from_iterable(pieces))
                if visit is not None:
                    body += [statement, *visit.lines()]
                    continue
        body.append(statement)
    binder.body = body


def _pieces(lines: Sequence[ast.stmt], bound: Collection[str]) -> Iterator[list[ast.stmt]]:
    """Return the lines of a function, with the calls of a stretch grouped."""
    for is_call, group in groupby(lines, lambda line: _is_bound(line, bound)):
        own, count = list(group), MOST_CALLS if is_call else 1
        yield from (own[first : first + count] for first in range(0, len(own), count))


def _is_bound(statement: ast.stmt, bound: Collection[str]) -> bool:
    """Return whether a line calls a bound function with arguments that no kernel computes."""
    match statement:
        case ast.Expr(ast.Call(ast.Name(name), arguments, [])) if name in bound:
            return not any(map(_reads_elements, arguments))
    return False


def _names_arrays(statement: ast.stmt) -> bool:
    """Return whether a line only gives names to arrays: it writes no elements."""
    match statement:
        case ast.Assign(targets):
            return all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
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


@dataclass(frozen=True)
class _VisitCalls:
    """A visit that only calls bound functions, with arguments of the batch and the step.

    head: lines that name the arrays of the batch.
    inputs: names of such arrays among the arguments of each call; numbers: its other arguments.
    """

    function: ast.FunctionDef
    head: list[ast.stmt]
    calls: list[ast.Call]
    inputs: list[list[ast.expr]]
    numbers: list[list[ast.expr]]

    @classmethod
    def of(cls, function: ast.FunctionDef, bound: Collection[str]) -> "_VisitCalls | None":
        """Return a function's calls; None if it does something else, or takes no batch."""
        if [each.arg for each in function.args.args] != [_BATCH, _STEP]:
            return None
        head = list(takewhile(_names_arrays, function.body))
        lines = function.body[len(head) :]
        if not head or not all(_is_bound(line, bound) for line in lines):
            return None
        names = _names_in(head)
        calls, inputs, numbers = [], [], []
        for line in lines:
            assert isinstance(line, ast.Expr)
            assert isinstance(line.value, ast.Call)
            arguments = line.value.args
            own: list[ast.expr] = [
                each for each in arguments if isinstance(each, ast.Name) and each.id in names
            ]
            others = arguments[len(own) :]
            if _names_in(others) & names:
                return None
            calls.append(line.value)
            inputs.append(own)
            numbers.append(others)
        return cls(function, head, calls, inputs, numbers)

    def lines(self) -> list[ast.stmt]:
        """Return functions of the arguments, and the line that binds the visit."""
        name = self.function.name
        of_batch, of_step = f"{name}_inputs", f"{name}_numbers"
        calls: list[ast.expr] = [
            _tuple([call.func, ast.Constant(len(own)), ast.Constant(len(others))])
            for call, own, others in zip(self.calls, self.inputs, self.numbers, strict=True)
        ]
        names: list[ast.expr] = [ast.Name(each, ast.Load()) for each in (of_batch, of_step)]
        bind = ast.Call(
            ast.Name(BIND, ast.Load()), [ast.Name(name, ast.Load()), _tuple(calls), *names], []
        )
        found: list[ast.stmt] = [
            _function(of_batch, _BATCH, self.head, list(chain.from_iterable(self.inputs))),
            _function(of_step, _STEP, [], list(chain.from_iterable(self.numbers))),
            ast.Assign([ast.Name(name, ast.Store())], bind),
        ]
        return [_at(line, self.function) for line in found]


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    walked = chain.from_iterable(map(ast.walk, nodes))
    return {node.id for node in walked if isinstance(node, ast.Name)}


def _tuple(values: list[ast.expr]) -> ast.Tuple:
    return ast.Tuple(values, ast.Load())


def _function(
    name: str, argument: str, lines: Sequence[ast.stmt], found: list[ast.expr]
) -> ast.stmt:
    """Return the function of one argument that runs lines and returns a tuple."""
    (function,) = ast.parse(f"def {name}({argument}): ...").body
    assert isinstance(function, ast.FunctionDef)
    function.body = [*lines, ast.Return(_tuple(found))]
    return function


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
