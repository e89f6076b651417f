"""Elements of an array: the command of each, from the array's command and values. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from csrun.base import params_settings, typed_yaml
from csrun.base.errors import UsageError
from csrun.jobs.request import JobRequest
from csrun.launch.array.array_indices import ArrayIndices
from csrun.launch.script_imports import uses_csrun_params
from csrun.launch.script_options import options_of
from csrun.launch.user_command import UserCommand, option

INDEX = "%a"  # in arguments and values: replaced by the element's index, as in Slurm's file names
ARRAY = "%A"
ARRAY_LABEL, INDEX_LABEL = "array", "array-index"
_MODEL_DIR = ("-o", "--model_dir", "--model-dir")
_MODEL_DIR_KEY = "runconfig.model_dir"


class ArrayElement(msgspec.Struct, frozen=True):
    """One job of an array.

    values: values of its keys, as on the command line.
    in_params: keys that are set in a separate params file of the element.
    model_dir: None if not known.
    exit_code: exit code of its launcher; None until it has ended, or has submitted the job.
    """

    index: int
    values: dict[str, str]
    command: tuple[str, ...]
    model_dir: str | None = None
    exit_code: int | None = None
    in_params: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayScript:
    """Script of an array's command.

    takes_set: csrun.params parses its command line, so it accepts --set.
    has_options: another parser parses its command line.
    options: options that it declares, with their defaults if those are constants; None if not
        known.
    """

    takes_set: bool = False
    has_options: bool = False
    options: Mapping[str, object] | None = None

    @classmethod
    def of(cls, script: str | None) -> "ArrayScript":
        """Return the script of a command; None for another program, which accepts no values."""
        if script is None:
            return cls()
        if uses_csrun_params(script):
            return cls(takes_set=True)
        return cls(has_options=True, options=options_of(script))

    def option(self, key: str) -> str:
        """Return the option that sets a key.

        Raises: UsageError if the script does not have it
        """
        known = [f"--{key}"] if self.options is None else self.options
        for each in known:
            if each[2:].replace("-", "_") == key:
                return each
        names = [each[2:] for each in known]
        raise UsageError(
            f"--set {key}: the script has no option --{key}"
            f"{typed_yaml.suggestion(key, names) or f'; use {INDEX} in the command instead'}"
        )


@dataclass(frozen=True)
class ArraySettings:
    """Values of one key: one per element, or one for all."""

    key: str
    values: tuple[str, ...]

    def value(self, at: int, index: int) -> str:
        """Return the value of the element at position `place`, with this index."""
        text = self.values[at] if len(self.values) > 1 else self.values[0]
        return text.replace(INDEX, str(index))


def parse_settings(texts: Sequence[str], spec: ArrayIndices) -> tuple[ArraySettings, ...]:
    """Parse settings of the form `KEY=V1,V2,...`.

    Raises: UsageError for another form, a duplicate key, or a wrong number of values
    """
    found: list[ArraySettings] = []
    elements = len(spec.indices)
    for setting in texts:
        key, text = params_settings.split(setting)
        values = tuple(params_settings.split_values(text))
        if len(values) not in (1, elements):
            raise UsageError(
                f"--set {key}: has {len(values)} values, --array {elements} elements: give one"
                " value per element, or one for all"
            )
        if "" in values:
            raise UsageError(f"--set {key}: {text!r} has an empty value")
        if any(each.key == key for each in found):
            raise UsageError(f"--set {key}: is given twice: list its values in one --set")
        found.append(ArraySettings(key, values))
    return tuple(found)


def elements_of(
    command: UserCommand,
    spec: ArrayIndices,
    settings: Sequence[ArraySettings],
    script: ArrayScript,
) -> tuple[ArrayElement, ...]:
    """Return the elements, with their values on their command lines.

    A script with its own parser gets `--KEY=VALUE`. Nested keys are set in the params file of its
    command, if there is one.

    Raises: UsageError for values that the command does not accept, and for a model_dir shared by
    all elements
    """
    if settings and not (script.takes_set or script.has_options):
        raise UsageError(
            "--set needs a script run by python, python-pt or python-ws: use"
            f" {INDEX} in the command instead, or read CSRUN_ARRAY_TASK_ID"
        )
    keys = [each.key for each in settings]
    has_params = script.has_options and command.params is not None
    in_params = tuple(key for key in keys if has_params and "." in key)
    found = []
    for at, index in enumerate(spec.indices):
        values = {each.key: each.value(at, index) for each in settings}
        argv = [argument.replace(INDEX, str(index)) for argument in command.argv]
        added = []
        for key, value in values.items():
            if script.takes_set:
                added += ["--set", f"{key}={value}"]
            elif key not in in_params:
                added.append(f"{script.option(key)}={_unquoted(value)}")
        model_dir = None
        if command.mode:
            named = option(tuple(argv[2:]), _MODEL_DIR)
            model_dir = option(tuple(added), _MODEL_DIR) or named
        argv += added
        element = ArrayElement(index, values, tuple(argv), model_dir, in_params=in_params)
        found.append(element)
    if command.mode is not None and not script.takes_set:
        _require_own_model_dirs(found, script)
    return tuple(found)


def _unquoted(value: str) -> str:
    """Return the value without the quotes that protected its commas."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _require_own_model_dirs(elements: Sequence[ArrayElement], script: ArrayScript) -> None:
    """Raises: UsageError if elements would write to one model_dir, and resume each other's
    training
    """
    named = [each.model_dir for each in elements if each.model_dir is not None]
    if (shared := next((each for each in named if named.count(each) > 1), None)) is not None:
        raise UsageError(
            f"--model_dir {shared}: several elements of the array would write to it: write"
            f" {shared}/{INDEX}"
        )
    is_set = any(key.split(".")[-1] == "model_dir" for each in elements for key in each.values)
    if len(elements) < 2 or named or is_set:
        return
    for name, default in (script.options or {}).items():
        if name in _MODEL_DIR and default is not None:
            raise UsageError(
                f"{name}: all elements of the array would write to the script's default, "
                f"{default}: add {name} {default}/{INDEX}"
            )


def with_model_dirs(
    elements: Sequence[ArrayElement], command: UserCommand, model_dirs: Sequence[str | None]
) -> tuple[ArrayElement, ...]:
    """Give each element a model_dir below the one in its params.

    A model_dir that the user derives from the index, or lists by --set, is kept.
    """
    named = option(command.argv[2:], _MODEL_DIR) or ""
    found = []
    for element, model_dir in zip(elements, model_dirs, strict=True):
        argv = element.command
        if model_dir and INDEX not in named and _MODEL_DIR_KEY not in element.values:
            model_dir = str(Path(model_dir) / f"array_{element.index}")
            argv = (*argv, "--model_dir", model_dir)
        found.append(
            msgspec.structs.replace(element, command=argv, model_dir=model_dir or element.model_dir)
        )
    return tuple(found)


_OF_ARRAYS = ("--array", "--set")  # options with a value


def request_of(request: JobRequest, element: ArrayElement, array_id: int) -> JobRequest:
    """Return the job request of an element: its command, labels and output."""
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
    """Return the launcher arguments of one element; given: those of the array, with `command`."""
    found, arguments = [], iter(given[: len(given) - len(command)])
    for argument in arguments:
        if argument in _OF_ARRAYS:
            next(arguments, None)
        elif argument.partition("=")[0] not in _OF_ARRAYS:
            found.append(argument)
    return (*found, *element.command)


def require_own_outputs(output: str | None) -> None:
    """Raises: UsageError for an --output that all elements would write to"""
    if output is not None and INDEX not in output and "%j" not in output:
        raise UsageError(
            f"--output {output}: all elements of the array would write to it: add {INDEX}, the"
            " index, or %j, the job's id"
        )
