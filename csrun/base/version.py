"""The version of csrun, a part of every compile's checksum; those of what a run computes with."""

import platform
from collections.abc import Iterable

VERSION = "0.1.0"
COMPARED = ("numpy", "torch")  # their arithmetic is a run's


def installed_versions() -> dict[str, str]:
    """The versions of csrun, of Python and of `COMPARED` here, by name; of these, those installed.

    Nothing is imported for it.
    """
    from importlib import metadata  # slow, and of use only here

    found = {"csrun": VERSION, "Python": platform.python_version()}
    for name in COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def differing(versions_of: Iterable[tuple[str, dict[str, str]]]) -> dict[str, dict[str, list[str]]]:
    """The names whose versions differ between places: each with its versions, and who has them.

    A place that lacks a name has the version `none`.
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
