"""Params file of an element: a copy of the command's, with the element's values.

Used for scripts that read their params file themselves. Only the values change; a scalar keeps its
text, because the script may parse another version of YAML.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import yaml

from csrun.base import typed_yaml
from csrun.base.errors import UsageError
from csrun.base.files import make_private, read_input, write_atomic
from csrun.base.plain_yaml import MAX_BYTES
from csrun.launch.array.array_elements import ArrayElement
from csrun.launch.user_command import UserCommand


def require_params(elements: Iterable[ArrayElement]) -> None:
    """Check the values of each element that are set in a params file.

    Raises: UsageError for a file that cannot be read, and for a missing key
    """
    for element in elements:
        _params_of(element)


def with_params_files(elements: Iterable[ArrayElement], folder: Path) -> tuple[ArrayElement, ...]:
    """Return the elements with commands that name separate params files, written into `folder`."""
    found = []
    for element in elements:
        if (text := _params_of(element)) is not None:
            make_private(folder)
            path = folder / f"params_{element.index}.yaml"
            write_atomic(path, text, durable=False)
            argv = UserCommand(element.command).with_params(str(path)).argv
            element = msgspec.structs.replace(element, command=argv)
        found.append(element)
    return tuple(found)


def _params_of(element: ArrayElement) -> bytes | None:
    """Return the text of the element's params file; None if the element changes no value."""
    values = {key: element.values[key] for key in element.in_params}
    path = UserCommand(element.command).params
    if not values or path is None:
        return None
    try:
        return set_values(read_input(Path(path), MAX_BYTES), values)
    except OSError as error:
        raise UsageError(f"--params: {path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def set_values(text: bytes, values: Mapping[str, str]) -> bytes:
    """Set keys of a YAML text by their paths; each value is YAML itself.

    Raises: UsageError for a missing key or a value that is not YAML; yaml.YAMLError
    """
    composed = {key: _composed(key, value) for key, value in values.items()}
    root = yaml.compose(text, yaml.SafeLoader)
    for key, value in composed.items():
        root = _with_value(root, key.split("."), value, key)
    return yaml.serialize(root, Dumper=yaml.SafeDumper, allow_unicode=True, encoding="utf-8")


def _composed(key: str, value: str) -> yaml.Node:
    """Raises: UsageError for a value that is not YAML"""
    try:
        found = yaml.compose(value, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {key}: {value!r} is not YAML: quote it") from error
    if found is None:
        raise UsageError(f"--set {key}: {value!r} is not a YAML value: quote it")
    return found


def _with_value(
    node: yaml.Node | None, path: list[str], value: yaml.Node | None, key: str
) -> yaml.Node | None:
    """Return a copy of a node with one value changed; other aliases of the section keep the old
    value.
    """
    if not path:
        return value
    names = _names_of(node)
    known = [*names, *(name for each in _merged(node) for name in _names_of(each))]
    if path[0] not in (known if len(path) == 1 else names):
        raise UsageError(
            f"--set {key}: the file has no key {path[0]}"
            f"{typed_yaml.suggestion(path[0], known) or '; add it to the file, with its default'}"
        )
    assert isinstance(node, yaml.MappingNode), "it has names"
    pairs = [
        (name, _with_value(old, path[1:], value, key) if name.value == path[0] else old)
        for name, old in node.value
    ]
    if path[0] not in names:  # overrides a key of a merged section
        pairs.append((yaml.ScalarNode("tag:yaml.org,2002:str", path[0]), value))
    return yaml.MappingNode(node.tag, pairs, flow_style=node.flow_style)


def _names_of(node: yaml.Node | None) -> list[str]:
    return [name.value for name, _ in node.value] if isinstance(node, yaml.MappingNode) else []


def _merged(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """Return the sections merged into a section by `<<`."""
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if name.value == "<<":
            yield from value.value if isinstance(value, yaml.SequenceNode) else (value,)
