"""HTML pages of reports, each self-contained in one file."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

TEMPLATE = "page.html"
Filter = Callable[..., str]


def page(folder: Path, filters: Mapping[str, Filter], **values: Any) -> str:
    """The text of the page whose template, with its style, lies in a folder."""
    text: str = _template(folder, tuple(filters.items())).render(**values)
    return text


@cache  # to compile a template takes longer than the rest of a small model's compile
def _template(folder: Path, filters: tuple[tuple[str, Filter], ...]) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # only who wants a page pays

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(TEMPLATE)
