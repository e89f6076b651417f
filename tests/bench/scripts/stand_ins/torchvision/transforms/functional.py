"""Functions of images: names that timm imports and no script here calls."""


class InterpolationMode:
    """Names of ways to resize, none of which is used."""

    NEAREST, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS, NEAREST_EXACT = range(7)


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return None
