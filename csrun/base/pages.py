"""HTML pages of reports, each of which needs nothing beside itself."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TEMPLATE = "page.html"


def page(folder: Path, filters: Mapping[str, Callable[..., str]], **values: Any) -> str:
    """The text of the page whose template, with its style, lies in a folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # only who wants a page pays

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(TEMPLATE).render(**values)
