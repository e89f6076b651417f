"""Versions of csrun and of the packages that a run computes with.

csrun's version is part of each compile's checksum.
"""

import platform
from collections.abc import Iterable

VERSION = "0.1.0"
COMPARED = ("numpy", "torch")  # packages whose arithmetic a run uses


def installed_versions() -> dict[str, str]:
    """Return the versions of csrun, Python and the installed packages of `COMPARED`, by name.

    Nothing is imported.
    """
    from importlib import metadata  # slow import, only needed here

    found = {"csrun": VERSION, "Python": platform.python_version()}
    for name in COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def differing(versions_of: Iterable[tuple[str, dict[str, str]]]) -> dict[str, dict[str, list[str]]]:
    """Return the names whose versions differ between places, with each version and its places.

    A place without the package has the version `none`.
    """
    places = list(versions_of)
    names = dict.fromkeys(name for _, versions in places for name in versions)
    found: dict[str, dict[str, list[str]]] = {}
    for name in names:
        by_version: dict[str, list[str]] = {}
        for place, versions in places:
            by_version.setdefault(versions.get(name, "none"), []).append(place)
        if len(by_version) > 1:
            found[name] = by_version
    return found
