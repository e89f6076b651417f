"""Chains of operators."""

from typing import Any

from csrun.data.input_operators import InputOperator, Level


def chain(*calls: tuple[str, dict[str, Any]]) -> tuple[InputOperator, ...]:
    """Operators in sequence; the n-th is on line n of data.py."""
    operators = []
    level = Level.SAMPLE
    for line, (name, options) in enumerate(calls, 1):
        if name in ("batch", "from_batches"):
            level = Level.BATCH
        operators.append(InputOperator(name, level, options, f"data.py:{line}"))
    return tuple(operators)


def arrays(samples: int = 1000) -> tuple[str, dict[str, Any]]:
    return "from_arrays", {"arrays": 2, "samples": samples}


def files(count: int = 8, samples: int | None = None) -> tuple[str, dict[str, Any]]:
    return "from_files", {"files": count, "format": "Csv", "samples": samples}


def shuffle(window: int | None = None) -> tuple[str, dict[str, Any]]:
    return "shuffle", {"seed": 1, "window": window}


def repeat(count: int | None = None) -> tuple[str, dict[str, Any]]:
    return "repeat", {"count": count}


def batch(size: int = 50, drop: bool = False, **more: Any) -> tuple[str, dict[str, Any]]:
    return "batch", {"batch_size": size, "drop_remainder": drop, **more}


def map_of(function: str = "load", parallel: int | None = None) -> tuple[str, dict[str, Any]]:
    return "map", {"function": function, "num_parallel_calls": parallel}


def interleave(
    cycle: int = 4, parallel: int | None = None, block: int = 16
) -> tuple[str, dict[str, Any]]:
    options = {"cycle_length": cycle, "block_length": block, "num_parallel_calls": parallel}
    return "interleave", options


def shard(count: int, index: int = 0) -> tuple[str, dict[str, Any]]:
    return "shard", {"count": count, "index": index}
