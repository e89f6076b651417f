"""One name, one meaning: class names, and file names of modules."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import csrun

ROOT = Path(csrun.__file__).parent

# Classes that share a name on purpose, by the folders of their modules.
SHARED_CLASS_NAMES = {
    # An optimizer of the user, its formula, and csrun.pytorch's optimizer for PyTorch loops.
    "Adagrad": {"nn", "compiler/optimizers"},
    "Adam": {"nn", "compiler/optimizers"},
    "Lamb": {"nn", "compiler/optimizers", "pytorch/optimizers"},
    # A layer of the user, and its kernel.
    "AveragePool": {"nn", "compiler/kernels"},
    "BatchNorm": {"nn", "compiler/kernels"},
    "MaxPool": {"nn", "compiler/kernels"},
    # An operator of both dialects.
    "ViewOp": {"cirh/ops", "compiler/lair"},
    # The name of a schedule is its tag in files, and scripts of the Model Zoo have it.
    "Constant": {"executable", "pytorch/framework", "pytorch/step"},
    "Exponential": {"executable", "pytorch/framework"},
    "Polynomial": {"executable", "pytorch/framework"},
    # Names of `cerebras.tf`, as scripts of TensorFlow have them.
    "CSEstimatorSpec": {"estimator", "tensorflow"},
    "CSRunConfig": {"base", "tensorflow"},
    "CerebrasEstimator": {"estimator", "tensorflow"},
    # Names of `cerebras.framework.torch`, as scripts of the Model Zoo have them.
    "Optimizer": {"compiler/optimizers", "pytorch/framework"},
    "RateTracker": {"pytorch/framework", "records"},
    "Session": {"pytorch", "pytorch/framework"},
    # Optimizer state is in slots, as TensorFlow calls them; a token's slot is a place in the loop.
    "Slot": {"executable", "pytorch/step"},
}

# Folders whose modules mirror each other, file by file.
MIRRORED_FOLDERS = (
    # An operator: its class, batch rule, reference, passes, kernels, machine code and how a loaded
    # program calls it, layers; its PyTorch names.
    {
        "cirh",
        "cirh/batch_axes",
        "cirh/ops",
        "cirh/reference",
        "compiler/emit/llvm",
        "compiler/emit/llvm/lane_functions",
        "compiler/emit/llvm/library",
        "compiler/kernels",
        "compiler/lair",
        "compiler/passes",
        "data/ops",
        "executable",
        "kernels",
        "nn",
        "pytorch/operators",
        "pytorch/record",
        "tensorflow/operators",
    },
    {"cirh/algorithms", "compiler/optimizers", "pytorch/optimizers"},  # an optimizer
    # By process and by wire, and the messages of a role.
    {"runtime/remote", "runtime/roles", "runtime/step", "runtime/wire", "runtime/wire/messages"},
    {"launch", "launch/slurm"},  # for all schedulers, and for Slurm
)
# Words to avoid in names of classes and functions, and what to write instead.
WORDS_TO_AVOID = {
    "afar": "remote",
    "afterwards": "after, or a verb",
    "amid": "during",
    "anew": "again, or restart",
    "beside": "the role of the thing, or concurrent",
    "gone": "removed or lost",
    "heard": "received or reported",
    "hear": "receive",
    "look": "check, search or read",
    "looks": "checks",
    "said": "logged, printed or reported",
    "say": "log, print or report",
    "tell": "send, log, print or notify",
    "together": "joint or concurrent",
    "told": "sent or reported",
    "vain": "futile or without effect",
}
# Names that each package may use for its own.
CONVENTIONAL = {"__init__", "__main__", "base", "errors", "options"}


def modules() -> Iterator[Path]:
    """Modules of csrun, without the scripts that `csrun init` copies."""
    return (path for path in ROOT.rglob("*.py") if "templates" not in path.parts)


def folder_of(path: Path) -> str:
    return path.parent.relative_to(ROOT).as_posix()


def test_classes_share_a_name_only_on_purpose() -> None:
    found = defaultdict[str, list[str]](list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name.removeprefix("_")].append(folder_of(path))
    shared = {name: set(folders) for name, folders in found.items() if len(folders) > 1}
    assert shared == SHARED_CLASS_NAMES


def test_modules_share_a_file_name_only_with_their_mirrors() -> None:
    found = defaultdict[str, set[str]](set)
    for path in modules():
        found[path.stem].add(folder_of(path))
    shared = {
        name: folders
        for name, folders in found.items()
        if len(folders) > 1
        and name not in CONVENTIONAL
        and not any(folders <= group for group in MIRRORED_FOLDERS)
    }
    assert not shared


def words_of(name: str) -> set[str]:
    """Words of a name in camel case or with underscores."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"([A-Z])", r"_\1", name).lower()))


def test_names_have_the_words_of_the_field() -> None:
    found = [
        f"{folder_of(path)}/{path.name}: {node.name}: write {WORDS_TO_AVOID[word]!r}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for word in words_of(node.name) & WORDS_TO_AVOID.keys()
    ]
    assert not found


def test_words_of_a_name_are_found() -> None:
    assert words_of("_SaidByCsrun") == {"said", "by", "csrun"}
    assert words_of("keep_beside") == {"keep", "beside"}
