"""CIRH, the intermediate representation: a dialect of typed tensor operators after ATen's core set.

`dialect` has modules and their text, `ops` the operators, `builder` creates them, `gradients` has
the rules of reverse mode, `reference` the NumPy definition of every operator.
"""

from csrun.cirh.builder import Builder
from csrun.cirh.dialect import (
    new_module,
    parse_module,
    precision_of,
    run_mode_of,
    set_storage,
    storage_of,
)
from csrun.cirh.printer import print_module, print_module_of

__all__ = [
    "Builder",
    "new_module",
    "parse_module",
    "precision_of",
    "print_module",
    "print_module_of",
    "run_mode_of",
    "set_storage",
    "storage_of",
]
