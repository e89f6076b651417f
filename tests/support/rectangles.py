"""Relations of rectangles on the fabric."""

from csrun.executable import Rectangle


def apart(a: Rectangle, b: Rectangle) -> bool:
    """Whether two rectangles share no PE."""
    beside = a.x + a.width <= b.x or b.x + b.width <= a.x
    return beside or a.y + a.height <= b.y or b.y + b.height <= a.y


def inside(a: Rectangle, part: Rectangle) -> bool:
    """Whether a rectangle is inside of another one."""
    columns = part.x <= a.x and a.x + a.width <= part.x + part.width
    return columns and part.y <= a.y and a.y + a.height <= part.y + part.height
