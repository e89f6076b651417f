"""Damage to a file, drawn from a seed: bits, lengths, values, and replacements."""

import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from csrun.base import stored

Chance = random.Random
Damage = Callable[[Path, Chance], None]

FAR_TOO_LARGE = 1 << 40  # bytes; no disk has them: the file has a hole
LARGEST_BYTES = 1 << 22  # of what is damaged
HOSTILE_TEXT = [
    b"\xff\xfe", b"\0", b"[" * 100_000, b"{" * 2000, b"9" * 5000, b"&a [*a]", b"!!python/name:os ",
    b"%TAG ! x\n", b"\t- ", b"x" * 100_000, b": :", b"- - - -", b"1e999", b".inf", b"\xed\xa0\x80",
    b"&a {b: 1, <<: *a}", b"? ", b"'", b'"\\uD800"', b"017", b"1:30:00", b"\x85", b"..\n", b"---\n",
]  # fmt: skip
HOSTILE_VALUES: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 10**30, 0.5, -1e308, "", "x" * 100_000, "x" * 300, "\0", "/",
    "../../victim", "\u0663", [], {}, [[[]]], {"a": {}}, [0] * 1000, "nan", ".", "a\nb",
]  # fmt: skip


def is_small_file(path: Path) -> bool:
    """Whether a file exists that is small enough to be read and damaged, also a second time."""
    is_file = os.path.isfile(path) and not os.path.islink(path)
    return is_file and path.stat().st_size < LARGEST_BYTES


def _within(data: bytes, chance: Chance) -> int:
    return chance.randrange(len(data)) if data else 0


def flip_a_bit(path: Path, chance: Chance) -> None:
    flip_bits(path, chance, 1)


def flip_bits(path: Path, chance: Chance, count: int = 20) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(count if data else 0):
        data[_within(data, chance)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(path: Path, chance: Chance) -> None:
    os.truncate(path, _within(path.read_bytes(), chance))


def empty(path: Path, chance: Chance) -> None:
    os.truncate(path, 0)


def lengthen(path: Path, chance: Chance) -> None:
    data = path.read_bytes()
    more = [data, b"\0" * 4096, b"\n" * 7, chance.randbytes(100)]
    path.write_bytes(data + chance.choice(more))


def make_too_large(path: Path, chance: Chance) -> None:
    os.truncate(path, FAR_TOO_LARGE)


def fill_with_zeros(path: Path, chance: Chance) -> None:
    """Fill with zeros, as a crash of the machine leaves a file that was not flushed."""
    path.write_bytes(bytes(path.stat().st_size))


def overwrite_a_part(path: Path, chance: Chance) -> None:
    data = bytearray(path.read_bytes())
    at, length = _within(data, chance), chance.choice([1, 4, 8, 512])
    data[at : at + length] = chance.choice([bytes(length), b"\xff" * length, chance.randbytes(9)])
    path.write_bytes(data)


def insert_hostile_text(path: Path, chance: Chance) -> None:
    data = path.read_bytes()
    lines = [at + 1 for at, byte in enumerate(data) if byte == 0x0A]
    at = chance.choice([_within(data, chance), *chance.choices(lines, k=3)] if lines else [0])
    path.write_bytes(data[:at] + chance.choice(HOSTILE_TEXT) + data[at:])


def change_a_value(path: Path, chance: Chance) -> None:
    """Change a value of JSON and update its checksum, as another program or version may."""
    try:
        plain = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return insert_hostile_text(path, chance)
    if not isinstance(plain, dict):
        return insert_hostile_text(path, chance)
    is_sealed = plain.pop("crc32", None) is not None
    _change(plain, chance)
    path.write_bytes(stored.text_of(plain) if is_sealed else json.dumps(plain).encode())
    return None


def _change(plain: dict[str, Any] | list[Any], chance: Chance) -> None:
    keys: list[Any] = list(plain) if isinstance(plain, dict) else list(range(len(plain)))
    if not keys:
        return None
    key = chance.choice(keys)
    below = plain[key]
    if isinstance(below, dict | list) and below and chance.random() < 0.7:
        return _change(below, chance)
    how = chance.randrange(6)
    if how == 0:
        del plain[key]
    elif how == 1 and isinstance(plain, dict):
        plain["x" * chance.choice([1, 100_000])] = below
    else:
        plain[key] = chance.choice(HOSTILE_VALUES)
    return None


def delete_file(path: Path, chance: Chance) -> None:
    path.unlink()


def replace_by_folder(path: Path, chance: Chance) -> None:
    path.unlink()
    path.mkdir()
    if chance.random() < 0.5:
        (path / "file").touch()


def replace_by_fifo(path: Path, chance: Chance) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_socket(path: Path, chance: Chance) -> None:
    path.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            door.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def replace_by_link(path: Path, chance: Chance) -> None:
    """Replace by a link to nothing, itself, an endless file, or a folder."""
    path.unlink()
    targets = [path.name, "missing", "x" * 300, "x/" * 500, "/dev/zero", "/dev/null", ".", "/"]
    path.symlink_to(chance.choice(targets))


def replace_by_other_file(path: Path, chance: Chance) -> None:
    """Replace the file by another one of its folder."""
    others = sorted(p for p in path.parent.iterdir() if is_small_file(p) and p != path)
    if others:
        path.write_bytes(chance.choice(others).read_bytes())


#: With how often each is drawn.
DAMAGES: dict[Damage, int] = {
    flip_a_bit: 6,
    flip_bits: 2,
    cut: 3,
    empty: 1,
    lengthen: 2,
    make_too_large: 1,
    fill_with_zeros: 1,
    overwrite_a_part: 3,
    insert_hostile_text: 4,
    change_a_value: 8,
    delete_file: 1,
    replace_by_folder: 2,
    replace_by_fifo: 2,
    replace_by_socket: 1,
    replace_by_link: 4,
    replace_by_other_file: 2,
}


def drawn(chance: Chance) -> Damage:
    """Draw one of the damages."""
    (damage,) = chance.choices(list(DAMAGES), list(DAMAGES.values()))
    return damage
