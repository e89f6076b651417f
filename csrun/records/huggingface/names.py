"""Names of a model's tensors in transformers and in csrun: a table of rules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

NUMBER = "{n}"  # of a layer, in the names of a table


@dataclass(frozen=True)
class SourceTensors:
    """Source tensors of one of ours, concatenated along our last axis.

    is_transposed: they have it as [out, in], we as [in, out].
    """

    theirs: tuple[str, ...]
    is_transposed: bool = False


def same(name: str) -> SourceTensors:
    """A tensor as it is."""
    return SourceTensors((name,))


def transposed(*names: str) -> SourceTensors:
    """The weight of a torch.nn.Linear, or of several side by side."""
    return SourceTensors(names, is_transposed=True)


def joined(*names: str) -> SourceTensors:
    """Several tensors side by side."""
    return SourceTensors(names)


def named(rules: Mapping[str, SourceTensors], name: str) -> SourceTensors:
    """The rule of a tensor of ours.

    Raises: KeyError for a name that the table does not have
    """
    pattern = re.sub(r"(?<=/)\d+(?=/)", NUMBER, name)
    numbers = re.findall(r"(?<=/)(\d+)(?=/)", name)
    rule = rules[pattern]
    theirs = tuple(part.replace(NUMBER, *numbers) if numbers else part for part in rule.theirs)
    return SourceTensors(theirs, rule.is_transposed)
