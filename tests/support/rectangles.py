"""How rectangles of the fabric lie to each other."""

from csrun.executable import Rectangle


def apart(a: Rectangle, b: Rectangle) -> bool:
    """Whether they share no PE."""
    beside = a.x + a.width <= b.x or b.x + b.width <= a.x
    return beside or a.y + a.height <= b.y or b.y + b.height <= a.y


def inside(a: Rectangle, part: Rectangle) -> bool:
    """Whether all PEs of `a` are the part's."""
    columns = part.x <= a.x and a.x + a.width <= part.x + part.width
    return columns and part.y <= a.y and a.y + a.height <= part.y + part.height
