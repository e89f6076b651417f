"""Patches that many scripts share."""

from case import Block, Patch, Purpose

SETUP = """import cerebras_torch as cbtorch
cbtorch.initialize(model_dir="model_dir")
from bench_recorder import STEPS, finish, record, without_dropout
"""
BACKWARD = Patch("loss.backward()", "loss.backward(); record(loss)", Purpose.RECORD)


def setup(line: str = "import torch\n") -> Patch:
    """The first of the four lines, after an import."""
    return Patch(line, line + SETUP, Purpose.FOUR_LINES)


def four(old: str, call: str) -> Patch:
    """One of the four lines: the right-hand side of an assignment goes through a call."""
    name, value = old.split("=", 1)
    return Patch(old, f"{name}= {call}({value.strip()})", Purpose.FOUR_LINES)


def module(old: str) -> Patch:
    """The second of the four lines, over a model without dropout."""
    name, value = old.split("=", 1)
    call = f"{name}= cbtorch.module(without_dropout({value.strip()}))"
    return Patch(old, call, Purpose.FOUR_LINES)


def session(first: str, last: str, end: str = "finish(model)", model: str = "model") -> Block:
    """The last of the four lines, around a loop."""
    header = f'with cbtorch.Session({model}, optimizer, mode="train"):'
    return Block(header, first, last, end)
