"""Discovery of the modules of a package that define a table, instead of a central list."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def families_of(package: str, table: str) -> tuple[ModuleType, ...]:
    """Return the package's modules that define a table of this name, sorted by module name.

    A package may call it during its own import.
    """
    names = sorted(found.name for found in iter_modules(import_module(package).__path__))
    modules = [import_module(f"{package}.{name}") for name in names]
    return tuple(module for module in modules if hasattr(module, table))
