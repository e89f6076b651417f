"""csrun init: writes a runnable project, from a template or a reference model."""

import shlex
from difflib import get_close_matches
from pathlib import Path

import click

from csrun.base.errors import UsageError
from csrun.base.files import writing
from csrun.cli import frame

FOLDER = Path(__file__).parent / "templates"
PATTERNS = ("*.py", "*.md", "configs/*.yaml", "data/*.py", "data/*.md")  # as in setup.cfg
TRAIN = "csrun_wse --total-nodes 3 python-ws run.py --mode train"
EVALUATE = "csrun_wse --total-nodes 3 python-ws run.py --mode eval"
TRAIN_TORCH = "csrun_wse --total-nodes 3 python-pt run.py"
DIGITS = "pip install scikit-learn && python data/make_digits.py"
TOKENS = "python prepare_data.py"
# The commands that run each template, in its folder.
NEXT: dict[str, tuple[str, ...]] = {
    "regression": (TRAIN, EVALUATE),
    "text": (TRAIN, EVALUATE),
    "image": (TRAIN, EVALUATE),
    "torch": (TRAIN_TORCH,),
    "fc_mnist": (DIGITS, TRAIN, EVALUATE),
    "cnn_mnist": (f"csrun init fc_mnist ../fc_mnist && (cd ../fc_mnist; {DIGITS})", TRAIN),
    "gpt2": (TOKENS, TRAIN, EVALUATE),
    "gptj": ("less README.md",),
    "bert": ("csrun init gpt2 ../gpt2", "python ../gpt2/prepare_data.py --out data", TRAIN),
}


@click.command("init", context_settings=frame.SETTINGS)
@click.argument("template")
@click.argument("directory", type=click.Path(path_type=Path))
def init(template: str, directory: Path) -> int:
    """Write a project to DIRECTORY: regression, text, image or torch.

    These train in seconds on data that they make. The reference models fc_mnist, cnn_mnist, gpt2,
    gptj and bert are copied without their data. Nothing is overwritten.
    """
    files = template_files(template)
    if present := [name for name in files if (directory / name).exists()]:
        raise UsageError(f"init: {directory} has {', '.join(present)} already: name a new folder")
    for name, source in files.items():
        with writing(directory / name):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(source.read_bytes())
    click.echo(f"wrote {len(files)} files to {directory}; next:")
    for command in (f"cd {shlex.quote(str(directory))}", *NEXT[template]):
        click.echo(f"    {command}")
    return 0


def template_files(template: str) -> dict[str, Path]:
    """The files of a template by their names in the project.

    Raises: UsageError for an unknown template
    """
    if template not in NEXT:
        close = get_close_matches(template, NEXT, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(NEXT)}"
        raise UsageError(f"init: there is no template {template!r}: {hint}")
    folder = FOLDER / template
    found = (path for pattern in PATTERNS for path in sorted(folder.glob(pattern)))
    return {str(path.relative_to(folder)): path for path in found}
