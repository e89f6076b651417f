"""csrun init: writes a runnable project, from a template or a reference model."""

import shlex
from pathlib import Path

import click

from csrun.base.choice import Choice
from csrun.base.errors import UsageError
from csrun.base.files import writing
from csrun.cli import frame

FOLDER = Path(__file__).parent / "templates"
# Files of a template; setup.cfg packages the same ones, as tests/test_packaging.py checks.
PATTERNS = ("*.py", "*.md", "configs/*.yaml", "data/*.py", "data/*.md", "data/*.gz")
TRAIN = "csrun_wse --total-nodes 3 python-ws run.py --mode train"
EVALUATE = "csrun_wse --total-nodes 3 python-ws run.py --mode eval"
TRAIN_TORCH = "csrun_wse --total-nodes 3 python-pt run.py"
TOKENS = "python prepare_data.py"
TOKENS_OF_GPT2 = ("csrun init gpt2 ../gpt2", "python ../gpt2/prepare_data.py --out data")
# Commands that run each template, in its folder.
NEXT: dict[str, tuple[str, ...]] = {
    "regression": (TRAIN, EVALUATE),
    "text": (TRAIN, EVALUATE),
    "image": (TRAIN, EVALUATE),
    "torch": (TRAIN_TORCH,),
    "fc_mnist": (TRAIN, EVALUATE),
    "cnn_mnist": ("csrun init fc_mnist ../fc_mnist", TRAIN, EVALUATE),
    "gpt2": (TOKENS, TRAIN, EVALUATE),
    "gptj": (*TOKENS_OF_GPT2, TRAIN, EVALUATE),
    "bert": (*TOKENS_OF_GPT2, TRAIN, EVALUATE),
}


@click.command("init", context_settings=frame.SETTINGS)
@click.argument("template", type=Choice(tuple(NEXT)), metavar="TEMPLATE")
@click.argument("directory", type=click.Path(path_type=Path))
def init(template: str, directory: Path) -> int:
    """Write a project to DIRECTORY: regression, text, image or torch.

    These train in seconds on generated data. TEMPLATE may also be a reference model: fc_mnist,
    cnn_mnist, gpt2, gptj or bert. Existing files are not overwritten.
    """
    files = template_files(template)
    if present := [name for name in files if (directory / name).exists()]:
        raise UsageError(f"init: {directory} has {', '.join(present)} already: choose a new folder")
    for name, source in files.items():
        with writing(directory / name):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(source.read_bytes())
    click.echo(f"wrote {len(files)} files to {directory}; next:")
    for command in (f"cd {shlex.quote(str(directory))}", *NEXT[template]):
        click.echo(f"    {command}")
    return 0


def template_files(template: str) -> dict[str, Path]:
    """Return the files of a template by their names in the project."""
    folder = FOLDER / template
    found = (path for pattern in PATTERNS for path in sorted(folder.glob(pattern)))
    return {str(path.relative_to(folder)): path for path in found}
