"""Text of numbers in LLVM IR."""

import struct

FLOATS = ("float32", "float64")


def literal(number: float, dtype: str) -> str:
    """Return the text of a number, rounded to its type as NumPy does."""
    if dtype == "bool":
        return str(bool(number)).lower()
    if dtype not in FLOATS:
        return str(int(number))
    if dtype == "float32":
        number = struct.unpack("<f", struct.pack("<f", _in_float32(number)))[0]
    (bits,) = struct.unpack("<Q", struct.pack("<d", number))
    return f"0x{bits:016X}"


def _in_float32(number: float) -> float:
    """Round a number to float32 as NumPy does, where Python's struct would refuse it."""
    most = 3.4028235677973366e38  # midpoint between the largest float32 and the next power of 2
    if abs(number) < most or number != number:
        return number
    return float("inf") if number > 0 else float("-inf")
