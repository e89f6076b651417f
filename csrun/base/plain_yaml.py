"""YAML files as plain values; what is wrong with a text is said with its line and a remedy."""

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.reader import ReaderError

from csrun.base.errors import UsageError

_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"

_HINTS = {
    r"found character '\t'": "indent with spaces, not with tabs",
    "mapping values are not allowed": "is the line indented too far, or a space missing after the "
    "colon of the line before?",
    "expected <block end>": "is the line indented as its neighbours are?",
    "could not find expected ':'": "is a colon missing, or the space after it?",
}


class _Loader(yaml.SafeLoader):
    """YAML's safe loader with the floats of YAML 1.2 (1e-2), no dates, and no key given twice.

    Source: YAML 1.2.2, section 10.3.2, tag resolution, and section 3.2.1.3, node comparison
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  PyYAML's name and type
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            first = seen.setdefault((key.tag, key.value), key)
            if first is not key:
                line = first.start_mark.line + 1
                problem = f"{key.value} is given already in line {line}: remove one of the two"
                raise ComposerError(None, None, problem, key.start_mark)
        return node


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read(path: Path) -> Any:
    """The plain values of a YAML file.

    Raises: UsageError when it cannot be read, is not YAML, or gives a key twice
    """
    try:
        content = path.read_bytes()
        return yaml.load(content, _Loader)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ReaderError as error:
        line = content.count(b"\n", 0, error.position) + 1
        raise UsageError(
            f"{path}: line {line}: not text in UTF-8: byte 0x{error.character:02x}; save the file "
            "as UTF-8"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: {_explain(error)}") from error


def _explain(error: yaml.YAMLError | ValueError) -> str:
    """Why a text is not YAML, and where."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not YAML: {' '.join(str(error).split())}"
    mark, problem = error.problem_mark, str(error.problem)
    hints = (hint for start, hint in _HINTS.items() if problem.startswith(start))
    remedy = "".join(f"; {hint}" for hint in hints)
    return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem}{remedy}"
