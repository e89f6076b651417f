"""Sizes in bytes, parsed from and formatted as text."""

import re

_UNITS = {"": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? ?(kB|[KMGT]i?B)?$"
BYTES_WORDS, SIZE_WORDS = "a number of bytes", "a size such as 8GiB or 1.5 GB"


def bytes_in(size: int | str) -> int:
    """Convert a number of bytes, or text such as 8GiB or 1.5 GB, to bytes.

    Raises: ValueError for any other text
    """
    if isinstance(size, int):
        return size
    if not re.fullmatch(SIZE_PATTERN, size):
        raise ValueError(f"not a size: {size!r}; write it as 8GiB, 1.5 GB or in bytes")
    number, unit = re.findall(r"^([0-9.]+) ?(\w*)$", size)[0]
    return int(float(number) * _UNITS[unit])


def size_text(nbytes: int) -> str:
    """Format bytes in the unit that leaves a number below a thousand."""
    for unit in ("TB", "GB", "MB", "kB"):
        if nbytes >= _UNITS[unit]:
            return f"{nbytes / _UNITS[unit]:.1f} {unit}"
    return f"{nbytes} bytes"
