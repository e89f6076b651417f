"""Rules that map the names of a model's tensors between transformers and csrun."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

NUMBER = "{n}"  # placeholder of a layer's number in a table's names


@dataclass(frozen=True)
class SourceTensors:
    """Source tensors of one of our tensors, concatenated along our last axis.

    is_transposed: they are [out, in], ours is [in, out].
    """

    theirs: tuple[str, ...]
    is_transposed: bool = False


def same(name: str) -> SourceTensors:
    """Rule of a tensor that is copied unchanged."""
    return SourceTensors((name,))


def transposed(*names: str) -> SourceTensors:
    """Rule of the weight of a torch.nn.Linear, or of several concatenated ones."""
    return SourceTensors(names, is_transposed=True)


def joined(*names: str) -> SourceTensors:
    """Rule of several concatenated tensors."""
    return SourceTensors(names)


def named(rules: Mapping[str, SourceTensors], name: str) -> SourceTensors:
    """Return the rule of one of our tensors.

    Raises: KeyError for a name that the table does not have
    """
    pattern = re.sub(r"(?<=/)\d+(?=/)", NUMBER, name)
    numbers = re.findall(r"(?<=/)(\d+)(?=/)", name)
    rule = rules[pattern]
    theirs = tuple(part.replace(NUMBER, *numbers) if numbers else part for part in rule.theirs)
    return SourceTensors(theirs, rule.is_transposed)
