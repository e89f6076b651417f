"""Packages whose files each have a table of their own: no list of them stands anywhere."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def families_of(package: str, table: str) -> tuple[ModuleType, ...]:
    """The modules of a package that have a table of this name, in the order of their names.

    The package may ask while it is imported itself.
    """
    names = sorted(found.name for found in iter_modules(import_module(package).__path__))
    modules = [import_module(f"{package}.{name}") for name in names]
    return tuple(module for module in modules if hasattr(module, table))
