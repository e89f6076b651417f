"""Slow imports of a script, found in its source before any task starts."""

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.framework import KERAS, TENSORFLOW, TORCH, Framework
from csrun.launch.user_command import UserCommand

#: Packages that take seconds and hundreds of megabytes; a node's tasks share one import.
HEAVY = ("torch", "cerebras_torch", "tensorflow")
#: Framework that an imported module requires.
_NEEDED = {
    "torch": TORCH,
    "cerebras_torch": TORCH,
    "cerebras.framework": TORCH,
    "csrun.keras": KERAS,
    "csrun.tensorflow": TENSORFLOW,
    "tensorflow": TENSORFLOW,
    "cerebras.tf.cs_model_to_estimator": KERAS,
    "cerebras.tf": TENSORFLOW,
}
#: Packages that never import csrun; each task has NumPy anyway.
_PLAIN = {*sys.stdlib_module_names, "numpy"} - {"importlib", "runpy"}
_BESIDE = {"cerebras_torch": ("torch._dynamo",)}  # imported by the first optimizer of torch.optim


def preloaded(command: UserCommand, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that a job's tasks will import and that are worth a shared import.

    modules: modules that scripts with csrun need. Their import takes most of the CPU time of a
        short job, so scripts that only import plain packages get none.
    """
    return (*(modules if _may_import_csrun(command) else ()), *heavy_imports(command))


def _may_import_csrun(command: UserCommand) -> bool:
    if command.script is None:
        return True
    script = Path(command.script)
    names = {name for node in nodes_of(script) for name in _imported(node)}
    return any(not (script.parent / f"{name}.py").is_file() for name in names - _PLAIN)


def heavy_imports(command: UserCommand) -> tuple[str, ...]:
    """Return the modules of `HEAVY` that a script of csrun's interpreters, or a module next to it,
    imports, and those that they will import in use.

    A file that cannot be read or parsed counts as importing nothing; the tasks report the error.
    """
    if command.script is None:
        return ()
    script = Path(command.script)
    nodes = tuple(nodes_of(script))
    found = {name for node in nodes for name in _imported(node)} - {"tensorflow"}
    if any(map(_is_of_estimators, nodes)):
        found |= {"tensorflow"} & set(_at_once(script, set()))
    if any(map(_is_of_torch_scripts, nodes)):
        found.add("cerebras_torch")  # the framework's modules import it, and PyTorch
    names = [name for name in HEAVY if name in found]
    return (*names, *(beside for name in names for beside in _BESIDE.get(name, ())))


def require_packages(command: UserCommand) -> None:
    """Check that the framework is installed that a script of csrun's interpreters needs.

    Imports in a function or a `try` are not checked, since the script can start without them.

    Raises: UsageError with the line of the import, where every task would fail
    """
    if command.script is None:
        return
    script = Path(command.script)
    for node in _tree(script).body:
        for module in _modules(node):
            if (name := _needing(module)) is None:
                continue
            needed = _NEEDED[name]
            shown = name if module.startswith(name) else module
            imports = f"{script}:{node.lineno}: imports {shown}"
            neighbour = script.parent / f"{needed.package}.py"
            if find_spec(needed.package) is None and not neighbour.exists():
                raise UsageError(
                    f"{imports}, and {needed.title} is not installed: {needed.install}"
                )
            if needed is KERAS and name != needed.package and find_spec(TORCH.package) is None:
                raise UsageError(
                    f"{imports}, which needs Keras on PyTorch, and PyTorch is not installed: "
                    f"{needed.install}"
                )
            if needed is not TORCH and name != needed.package:
                _require_version(imports, needed)


def _needing(module: str) -> str | None:
    """Return the entry of `_NEEDED` for an imported module: itself, its parent, or its need in the
    Model Zoo.
    """
    root, *parts = module.split(".")
    if root == "modelzoo":
        framework = {"pytorch": "cerebras.framework", "tf": "cerebras.tf"}
        return next((framework[part] for part in parts if part in framework), None)
    return next((name for name in _NEEDED if f"{module}.".startswith(f"{name}.")), None)


def _require_version(imports: str, needed: Framework) -> None:
    """Raises: UsageError if csrun's estimators are used with an unsupported or missing TensorFlow
    or Keras
    """
    names = ("tensorflow", "tensorflow-cpu") if needed is TENSORFLOW else (needed.package,)
    found = next(filter(None, map(_version, names)), None)
    if found is None:
        return
    if not needed.supports(found):
        raise UsageError(
            f"{imports}, which needs {needed.title} {needed.versions}, got {found}: "
            f"{needed.install}"
        )
    if needed is TENSORFLOW and find_spec("tf_keras") is None:
        raise UsageError(f"{imports}, which needs Keras 2: {needed.install}")


def _version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # slow import, only needed here

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def uses_csrun_params(script: str) -> bool:
    """Return whether csrun.params parses a script's command line."""
    return any(_imports_from_params(node, "run") for node in _tree(Path(script)).body)


def may_use_params(script: str) -> bool:
    """Return whether a script or a module next to it may call csrun.params.run, as far as the
    source shows; packages next to it are not analyzed.
    """
    nodes, folder = [*nodes_of(Path(script))], Path(script).parent
    packages = {folder / name for node in nodes for name in _imported(node)}
    return any(map(_may_import_run, nodes)) or any(map(_is_package, packages))


def _may_import_run(node: ast.AST) -> bool:
    """True for an import of csrun.params.run, of a module that has it, or of an importer."""
    if isinstance(node, ast.ImportFrom):
        names = {"csrun.params": {"run", "*"}, "csrun": {"params"}}.get(node.module or "", set())
        return any(alias.name in names for alias in node.names)
    return any(name in ("csrun.params", "csrun", "importlib", "runpy") for name in _modules(node))


def parses_arguments_unchanged(script: str) -> bool:
    """Return whether a script parses its arguments unchanged, as far as the source shows.

    False if `sys.argv` is named, or if the script imports packages next to it, which are not
    analyzed.
    """
    nodes, folder = [*nodes_of(Path(script))], Path(script).parent
    packages = {folder / name for node in nodes for name in _imported(node)}
    return not (
        any(isinstance(node, ast.Attribute) and node.attr == "argv" for node in nodes)
        or any(isinstance(node, ast.alias) and node.name == "argv" for node in nodes)
        or any(map(_is_package, packages))
    )


def _is_package(path: Path) -> bool:
    """Return whether Python would import a folder at this path instead of a module next to it."""
    return (path / "__init__.py").exists() or (
        path.is_dir() and not path.with_name(f"{path.name}.py").exists()
    )


def version_hint(command: UserCommand) -> str | None:
    """Return a hint for a script of csrun's PyTorch front end with an untested PyTorch; else
    None.
    """
    if command.script is None:
        return None
    modules = (name for node in _tree(Path(command.script)).body for name in _modules(node))
    names = {_needing(module) for module in modules}
    of_torch = {name for name, needed in _NEEDED.items() if needed is not TENSORFLOW}
    if not names & (of_torch - {"torch"}):
        return None
    found = _version("torch")
    if found is None or TORCH.supports(found):
        return None
    return (
        f"csrun was tested with PyTorch {TORCH.versions}, this is {found}: {TORCH.install} "
        "installs the tested version"
    )


def interpreter_hint(command: UserCommand) -> str | None:
    """Return a hint for a script of csrun.nn under the interpreter of PyTorch scripts; else
    None.
    """
    script = command.script
    if command.interpreter != "python-pt" or script is None or not uses_csrun_params(script):
        return None
    return (
        f"{Path(script).name} is not a PyTorch script: python-pt and python run it layer "
        "pipelined, python-ws streams its weights"
    )


def has_run_config(script: str) -> bool:
    """True if the section `runconfig` certainly is csrun.params.RunConfig: a class next to the
    script uses it, or the script has no schema.
    """
    nodes = [*nodes_of(Path(script))]
    runs = [node for node in nodes if isinstance(node, ast.Call) and _name(node.func) == "run"]
    sections = [
        _name(node.annotation)
        for node in nodes
        if isinstance(node, ast.AnnAssign) and _name(node.target) == "runconfig"
    ]
    is_imported = any(_imports_from_params(node, "RunConfig") for node in nodes)
    if sections:
        return is_imported and set(sections) == {"RunConfig"}
    return bool(runs) and all(len(run.args) == 1 and not run.keywords for run in runs)


def sections_of(script: str) -> list[str] | None:
    """Sections that the schema of a script run by csrun.params declares; None where its source does
    not tell.
    """
    nodes = [*nodes_of(Path(script))]
    runs = [node for node in nodes if isinstance(node, ast.Call) and _name(node.func) == "run"]
    if len(runs) != 1:
        return None
    named = {each.arg: each.value for each in runs[0].keywords}
    schema = named.get("schema", runs[0].args[1] if len(runs[0].args) > 1 else None)
    if schema is None:
        return None if None in named else ["runconfig"]
    classes = [
        node for node in nodes if isinstance(node, ast.ClassDef) and node.name == _name(schema)
    ]
    if len(classes) != 1 or not _is_plain_struct(classes[0]):
        return None
    fields = [node for node in classes[0].body if isinstance(node, ast.AnnAssign)]
    if any(map(_may_rename, fields)):
        return None
    return [name for field in fields if (name := _name(field.target)) is not None]


def _is_plain_struct(node: ast.ClassDef) -> bool:
    """Return whether a class is a msgspec.Struct whose keys are the names in its body."""
    bases = [each.attr if isinstance(each, ast.Attribute) else _name(each) for each in node.bases]
    renames = any(each.arg in (None, "rename", "tag", "tag_field") for each in node.keywords)
    return bases == ["Struct"] and not renames and not node.decorator_list


def _may_rename(field: ast.AnnAssign) -> bool:
    """Return whether a field's default may give its key another name: msgspec.field(name=...)."""
    default = field.value
    return isinstance(default, ast.Call) and any(
        each.arg in (None, "name") for each in default.keywords
    )


def _imports_from_params(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "csrun.params"
        and any(alias.name == name and alias.asname in (None, name) for alias in node.names)
    )


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _at_once(script: Path, seen: set[Path]) -> Iterator[str]:
    """Return the top-level packages that a file and its neighbours import at start.

    Imports in functions are excluded: TensorFlow is not preloaded for them, as only the chief calls
    a model_fn.
    """
    seen.add(script)
    for name in (name for node in _tree(script).body for name in _imported(node)):
        yield name
        neighbour = script.parent / f"{name}.py"
        if neighbour not in seen and neighbour.is_file():
            yield from _at_once(neighbour, seen)


def nodes_of(script: Path) -> Iterator[ast.AST]:
    """Return the syntax nodes of a file and of the files next to it that it imports."""
    return _nodes(script, set())


def _nodes(script: Path, seen: set[Path]) -> Iterator[ast.AST]:
    seen.add(script)
    for node in ast.walk(_tree(script)):
        yield node
        for name in _imported(node):
            neighbour = script.parent / f"{name}.py"
            if neighbour not in seen and neighbour.is_file():
                yield from _nodes(neighbour, seen)


def _is_of_torch_scripts(node: ast.AST) -> bool:
    """True for an import from a package's PyTorch part, such as modelzoo.fc_mnist.pytorch.model."""
    return isinstance(node, ast.ImportFrom) and "pytorch" in (node.module or "").split(".")


def _is_of_estimators(node: ast.AST) -> bool:
    """True for an import of csrun's TensorFlow estimators, or of a package's part for them."""
    names = _modules(node)
    if any(f"{name}.".startswith(("cerebras.tf.", "csrun.tensorflow.")) for name in names):
        return True
    return isinstance(node, ast.ImportFrom) and "tf" in (node.module or "").split(".")


def _tree(script: Path) -> ast.Module:
    """Return a file's statements; none if it cannot be read or parsed."""
    try:
        return ast.parse(script.read_bytes())
    # ast.parse raises the last two for deeply nested source.
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _imported(node: ast.AST) -> list[str]:
    """Return the top-level packages that a node imports."""
    return [module.partition(".")[0] for module in _modules(node)]


def _modules(node: ast.AST) -> list[str]:
    """Return the modules that a node imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []
