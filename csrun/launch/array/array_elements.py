"""From a command and an array's values to the command of each element. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from csrun.base import params_settings
from csrun.base.errors import UsageError
from csrun.jobs.request import JobRequest
from csrun.launch.array.array_indices import ArrayIndices
from csrun.launch.user_command import UserCommand, option

INDEX = "%a"  # in words of the command and values: the element's index, as in Slurm's file names
ARRAY = "%A"
ARRAY_LABEL, INDEX_LABEL = "array", "array-index"
_MODEL_DIR = ("-o", "--model_dir", "--model-dir")
_MODEL_DIR_KEY = "runconfig.model_dir"


class ArrayElement(msgspec.Struct, frozen=True):
    """One job of an array.

    values: of its keys, as on the command line. model_dir: None where it is not known. exit_code:
    of its launcher, None until it has ended, and after it has submitted the job.
    """

    index: int
    values: dict[str, str]
    command: tuple[str, ...]
    model_dir: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class ArraySettings:
    """Values of one key: one for each element, or one for all."""

    key: str
    values: tuple[str, ...]

    def value(self, at: int, index: int) -> str:
        """Value of the element at a place, which has an index."""
        text = self.values[at] if len(self.values) > 1 else self.values[0]
        return text.replace(INDEX, str(index))


def parse_settings(words: Sequence[str], spec: ArrayIndices) -> tuple[ArraySettings, ...]:
    """Settings of `KEY=V1,V2,...`.

    Raises: UsageError for another form, a key given twice, or another number of values
    """
    found: list[ArraySettings] = []
    elements = len(spec.indices)
    for word in words:
        key, text = params_settings.split(word)
        values = tuple(params_settings.split_values(text))
        if len(values) not in (1, elements):
            raise UsageError(
                f"--set {key}: has {len(values)} values, --array {elements} elements: give one"
                " value per element, or one for all"
            )
        if "" in values:
            raise UsageError(f"--set {key}: a value is missing in {text!r}")
        if any(each.key == key for each in found):
            raise UsageError(f"--set {key}: is given twice: list its values in one --set")
        found.append(ArraySettings(key, values))
    return tuple(found)


def elements_of(
    command: UserCommand,
    spec: ArrayIndices,
    settings: Sequence[ArraySettings],
    *,
    takes_params: bool,
) -> tuple[ArrayElement, ...]:
    """Elements with their values on their command lines.

    takes_params: whether csrun.params parses the script's command line, and so knows --set

    Raises: UsageError for values of another command, and for one model_dir of all
    """
    if settings and not takes_params:
        raise UsageError(
            f"--set: only scripts that call csrun.params.run take it: write {INDEX} in the words"
            " of the command, or read CSRUN_ARRAY_TASK_ID"
        )
    named = option(command.words[2:], _MODEL_DIR) if command.mode else None
    if named is not None and not takes_params and INDEX not in named:
        raise UsageError(
            f"--model_dir {named}: all elements of the array would write to it: write"
            f" {named}/{INDEX}"
        )
    found = []
    for at, index in enumerate(spec.indices):
        values = {each.key: each.value(at, index) for each in settings}
        words = [word.replace(INDEX, str(index)) for word in command.words]
        for key, value in values.items():
            words += ["--set", f"{key}={value}"]
        model_dir = option(tuple(words[2:]), _MODEL_DIR) if command.mode else None
        found.append(ArrayElement(index, values, tuple(words), model_dir))
    return tuple(found)


def with_model_dirs(
    elements: Sequence[ArrayElement], command: UserCommand, model_dirs: Sequence[str | None]
) -> tuple[ArrayElement, ...]:
    """Elements that each have a model_dir of their own below those that their params name.

    One that the user makes from the index or lists by --set stays as it is.
    """
    named = option(command.words[2:], _MODEL_DIR) or ""
    found = []
    for element, model_dir in zip(elements, model_dirs, strict=True):
        words = element.command
        if model_dir and INDEX not in named and _MODEL_DIR_KEY not in element.values:
            model_dir = str(Path(model_dir) / f"array_{element.index}")
            words = (*words, "--model_dir", model_dir)
        found.append(
            msgspec.structs.replace(
                element, command=words, model_dir=model_dir or element.model_dir
            )
        )
    return tuple(found)


_OF_ARRAYS = ("--array", "--set")  # options that each have a value


def request_of(request: JobRequest, element: ArrayElement, array_id: int) -> JobRequest:
    """The request of an element: its command, labels and output."""
    options = request.options
    labels = {ARRAY_LABEL: str(array_id), INDEX_LABEL: str(element.index)}
    output = options.output
    if output is not None:
        output = output.replace(INDEX, str(element.index)).replace(ARRAY, str(array_id))
    own = replace(options, labels={**options.labels, **labels}, output=output)
    return replace(request, command=element.command, options=own)


def arguments_of(
    element: ArrayElement, given: Sequence[str], command: Sequence[str]
) -> tuple[str, ...]:
    """Arguments of a launcher of this element alone. given: those of the array, with `command`."""
    found, words = [], iter(given[: len(given) - len(command)])
    for word in words:
        if word in _OF_ARRAYS:
            next(words, None)
        elif word.partition("=")[0] not in _OF_ARRAYS:
            found.append(word)
    return (*found, *element.command)


def require_own_outputs(output: str | None) -> None:
    """Raises: UsageError for an --output that all elements would write to."""
    if output is not None and INDEX not in output and "%j" not in output:
        raise UsageError(
            f"--output {output}: all elements of the array would write to it: add {INDEX}, the"
            " index, or %j, the job's id"
        )
