"""One name, one meaning: class names, and file names of modules."""

import ast
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
    # A protocol, and the class of csrun's own scheduler.
    "NodeStatus": {"launch", "jobs"},
    # Generated programs name them with their modules: attention.Scratch, embedding.Scratch.
    "Scratch": {"kernels"},
    # The name of a schedule is its tag in files.
    "Constant": {"executable", "pytorch/step"},
    # Optimizer state is in slots, as TensorFlow calls them; a token's slot is a place in the loop.
    "Slot": {"executable", "pytorch/step"},
}

# Folders whose modules mirror each other, file by file.
MIRRORED_FOLDERS = (
    # An operator: its class, batch rule, reference, passes, kernels, layers; its PyTorch names.
    {
        "cirh",
        "cirh/batch_axes",
        "cirh/ops",
        "cirh/reference",
        "compiler/kernels",
        "compiler/lair",
        "compiler/passes",
        "data/ops",
        "kernels",
        "nn",
        "pytorch/operators",
        "pytorch/record",
    },
    {"cirh/algorithms", "compiler/optimizers", "pytorch/optimizers"},  # an optimizer
    {"runtime/remote", "runtime/roles", "runtime/step", "runtime/wire"},  # by process and by wire
    {"launch", "launch/slurm"},  # for all schedulers, and for Slurm
)
# Names that each package may use for its own.
CONVENTIONAL = {"__init__", "__main__", "base", "errors", "files", "options", "text"}
# Other file names that packages share, and what each is there.
SHARED_FILE_NAMES = {
    "arguments": "of a command line; of a recorded call",
    "batch": "operators of a batch; the sbatch script",
    "blocks": "blocks of a drawing; blocks of a transfer",
    "cpu": "csrun_cpu; a run on the CPU",
    "folder": "a job's folder; a model's",
    "labels": "of a loss, in the graph and along the batch axis",
    "layers": "of a model; of a plan",
    "layout": "of a site's folders; of a job's tasks",
    "learning": "optimizer operators; rules on how an input trains",
    "loop": "the loop of a kernel; of the shell",
    "metrics": "of an evaluation; of a job, for Prometheus",
    "model": "the model's operators; the site file's data model",
    "names": "in a program; of Hugging Face tensors",
    "numbers": "printed in reports; that come with a step",
    "operators": "of a kernel; of an input pipeline",
    "pages": "of a file that is read; of a store",
    "parts": "of a batch; of a checkpoint",
    "performance": "estimated; measured",
    "place": "the system of a run; the memory of a store",
    "plan": "of a program; of a job",
    "power": "of a system; the shell's command for it",
    "probe": "of an input pipeline; of a Slurm site",
    "progress": "of a compile or run; in the shell",
    "roles": "of an estimator's job; of a PyTorch script's",
    "rules": "of rewriting; of PyTorch's optimizers",
    "run": "of passes, of an estimator, of a Slurm job, of a params file",
    "schedule": "of learning rates; of minibatches",
    "sharding": "of a data set; rules about it",
    "slots": "of weights on the wafer; of optimizer state in a checkpoint",
    "state_files": "of PyTorch; of a CS system",
    "stored": "a value in a file; a tensor in a file",
    "tensors": "of a store; of Hugging Face files",
    "tokens": "of a text; of a PyTorch loop",
    "trace": "of a model function; of a process",
    "tracing": "of a formula; of a run",
    "updates": "emitted; applied",
    "views": "of the graph's arrays; PyTorch's",
}


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


def test_modules_share_a_file_name_only_where_it_is_known() -> None:
    found = defaultdict[str, set[str]](set)
    for path in modules():
        found[path.stem].add(folder_of(path))
    shared = {
        name
        for name, folders in found.items()
        if len(folders) > 1 and not any(folders <= group for group in MIRRORED_FOLDERS)
    }
    assert shared - CONVENTIONAL == SHARED_FILE_NAMES.keys()
