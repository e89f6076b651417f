"""HTML reports, each a single self-contained file."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csrun.base.files import find, write_atomic

if TYPE_CHECKING:
    from jinja2.bccache import BytecodeCache

TEMPLATE = "page.html"
Filter = Callable[..., str]


def page(folder: Path, filters: Mapping[str, Filter], **values: Any) -> str:
    """Render a page from the template and style sheet in a folder."""
    text: str = _template(folder, tuple(filters.items())).render(**values)
    return text


@cache  # compiling a template takes longer than the rest of a small model's compile
def _template(folder: Path, filters: tuple[tuple[str, Filter], ...]) -> Any:
    # slow import, only needed for a page
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        bytecode_cache=_bytecode_cache(folder / "__pycache__"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(TEMPLATE)


def _bytecode_cache(folder: Path) -> "BytecodeCache":
    """Bytecode cache of templates in Python's `__pycache__`, if it is writable."""
    from jinja2.bccache import Bucket, BytecodeCache

    class Cache(BytecodeCache):
        def load_bytecode(self, bucket: Bucket) -> None:
            # a damaged entry may raise any exception; the template is compiled again
            with suppress(Exception):
                bucket.bytecode_from_string(find(self._path(bucket)).data)

        def dump_bytecode(self, bucket: Bucket) -> None:
            if sys.dont_write_bytecode:
                return
            with suppress(OSError):
                folder.mkdir(exist_ok=True)
                write_atomic(self._path(bucket), bucket.bytecode_to_string(), durable=False)

        def _path(self, bucket: Bucket) -> Path:
            return folder / f"{bucket.key}.{sys.implementation.cache_tag}.jinja"

    return Cache()
