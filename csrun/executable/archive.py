"""Archives of object files in the format of ar(1), which `nm` and `objdump` read.

Source: ar(5), with the extended names of 4.4BSD; without the optional symbol table.
"""

from collections.abc import Mapping

ARCHIVE = ".a"  # suffix of its file
_MAGIC = b"!<arch>\n"
_END = b"`\n"  # of a header
_HEADER_BYTES = 60
_NAME, _SIZE = slice(3, 16), slice(48, 58)


def archive(objects: Mapping[str, bytes]) -> bytes:
    """Return the archive of object files, by name."""
    parts = [_MAGIC]
    for name, content in objects.items():
        own = name.encode() + content
        # length of the name, time, user, group, mode, size: equal objects give equal archives
        header = f"#1/{len(name):<13}{0:<12}{0:<6}{0:<6}{644:<8}{len(own):<10}"
        parts += [header.encode(), _END, own, b"\n" * (len(own) % 2)]
    return b"".join(parts)


def is_archive(image: bytes) -> bool:
    """Return whether an image is an archive, not an object file."""
    return image.startswith(_MAGIC)


def members(image: bytes) -> dict[str, bytes]:
    """Return the object files of an archive, by name.

    Raises: ValueError for an archive that ends early
    """
    found, at = {}, len(_MAGIC)
    while at < len(image):
        start = at + _HEADER_BYTES
        header = image[at:start]
        if not header.endswith(_END) or (end := start + int(header[_SIZE])) > len(image):
            raise ValueError("truncated archive")
        name = start + int(header[_NAME])
        found[image[start:name].decode()] = image[name:end]
        at = end + (end - start) % 2
    return found
