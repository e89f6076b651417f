"""Command line of a reference model's convert.py: between Hugging Face folders and model_dir.

python convert.py from_huggingface FOLDER --params configs/params_small.yaml
python convert.py to_huggingface FOLDER --params model_dir/params.yaml
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import yaml

from csrun.base import files
from csrun.base.errors import CsrunError, UsageError
from csrun.data import Dataset
from csrun.estimator.model_trace import ModelFunction, trace_model
from csrun.executable import RunMode
from csrun.params.command_line import load
from csrun.records import checkpoints, huggingface, log_lines, model_dir
from csrun.records.huggingface import Folder, SourceTensors
from csrun.records.tensor_files import Array

log = logging.getLogger("csrun")

PARAMS_FILE = "params.yaml"
SHOWN = 20  # names in a log line


@dataclass(frozen=True)
class Conversion:
    """Mapping between a reference model and a class of transformers.

    schema, default_params: of its params file. model_fn; example: a data set of its features.
    model_type: of config.json. sizes: keys of config.json, and of the params' section model.
    fixed: keys of config.json for which the model supports one value.
    equal_keys: pairs of keys for which the model has a single value; a difference is logged.
    rules: of its tensors. prefix: absent from names of base classes. spellings: suffixes in older
    files. ignored: suffixes of tensors without weights. tied: tensors equal to others.
    may_lack: name prefixes of weights that may be initialized instead.
    from_config: further keys of the params' section model; to_config: of config.json.
    """

    schema: type[Any]
    default_params: Path
    model_fn: ModelFunction
    example: Callable[[Any], Dataset]
    model_type: str
    sizes: Mapping[str, str]
    fixed: Mapping[str, Any]
    rules: Mapping[str, SourceTensors]
    from_config: Callable[[Mapping[str, Any], Any], dict[str, Any]]
    to_config: Callable[[Any], dict[str, Any]]
    prefix: str = ""
    spellings: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    equal_keys: Mapping[str, str] = field(default_factory=dict)
    may_lack: tuple[str, ...] = ()

    def spelled(self, name: str) -> list[str]:
        """Return the possible names of a tensor in Hugging Face files."""
        older = (name.replace(now, then) for now, then in self.spellings.items())
        names = dict.fromkeys((name, *older))
        return [*names, *(one.removeprefix(self.prefix) for one in names)]


def convert(conversion: Conversion) -> None:
    """Run the command line; a user error ends the process with one line."""
    log_lines.configure()
    group = click.Group("convert.py", help="Convert checkpoints from and to Hugging Face's layout.")
    for name, function in (("from_huggingface", _from), ("to_huggingface", _to)):
        command = click.command(name)(partial(function, conversion))
        for option in reversed(_OPTIONS[name]):
            command.params.insert(0, option)
        command.help = function.__doc__
        group.add_command(command)
    try:
        group.main(sys.argv[1:], prog_name=Path(sys.argv[0]).name)
    except CsrunError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


_FOLDER = click.Argument(["folder"], type=click.Path(path_type=Path))
_PARAMS = click.Option(["-p", "--params", "file"], type=click.Path(path_type=Path))
_MODEL_DIR = click.Option(["-o", "--model_dir", "target"], type=click.Path(path_type=Path))
_OPTIONS: dict[str, list[click.Parameter]] = {
    "from_huggingface": [_FOLDER, _PARAMS, _MODEL_DIR],
    "to_huggingface": [
        _FOLDER,
        _PARAMS,
        _MODEL_DIR,
        click.Option(["--checkpoint_path"], type=click.Path(path_type=Path)),
        click.Option(["--max_shard_size"], default="5GB", show_default=True),
    ],
}


def _from(conversion: Conversion, folder: Path, file: Path | None, target: Path | None) -> None:
    """Convert the model in FOLDER to a checkpoint, and write a params file that trains it.

    Sizes are taken from its config.json, everything else from --params.
    """
    params = load(conversion.schema, file or conversion.default_params)
    from_huggingface(conversion, folder, params, target or Path(params.runconfig.model_dir))


def _to(
    conversion: Conversion,
    folder: Path,
    file: Path | None,
    target: Path | None,
    checkpoint_path: Path | None,
    max_shard_size: str,
) -> None:
    """Write the newest checkpoint into FOLDER, as transformers' from_pretrained reads a model."""
    params = load(conversion.schema, file or conversion.default_params)
    place = checkpoint_path or target or Path(params.runconfig.model_dir)
    most = huggingface.size_in_bytes(max_shard_size)
    to_huggingface(conversion, folder, params, checkpoints.open_checkpoint(place), most)


def from_huggingface(conversion: Conversion, path: Path, params: Any, target: Path) -> Any:
    """Convert a saved model to a checkpoint, and return the params with its sizes.

    Raises: UsageError for a mismatch, by name; CsrunError for a damaged file
    """
    if checkpoints.has_any(target):
        raise UsageError(f"{target} already has checkpoints: choose another model_dir")
    folder = huggingface.open_folder(path)
    params = _sized(conversion, folder, params, target)
    shapes, dtype = _weights(conversion, params)
    found = huggingface.tensors_from_huggingface(
        folder, conversion.rules, shapes, dtype, conversion.spelled, conversion.may_lack
    )
    _require_tied(conversion, folder)
    text = yaml.safe_dump(msgspec.to_builtins(params), sort_keys=False).encode()
    with model_dir.opened(target), model_dir.locked(target, "convert.py"):
        _require_own(target / PARAMS_FILE, text)
        identity = checkpoints.converted_identity(path.resolve().name, found.absent)
        written = checkpoints.write(target, 0, found.tensors, identity, 1)
        files.write_atomic(target / PARAMS_FILE, text)
    log.info(f"{len(found.tensors)} tensors of {path}: {written}; params: {target / PARAMS_FILE}")
    passed = (*conversion.ignored, *conversion.tied)
    if unused := [name for name in found.unused if not name.endswith(passed)]:
        log.warning(f"{path}: skipped, not in this model: {_shown(unused)}")
    for line in _unlike(conversion, folder.config):
        log.warning(f"{path}: {line}")
    if found.absent:
        log.warning(f"{path}: missing, initialized by the training: {_shown(found.absent)}")
    return params


def _require_own(path: Path, text: bytes) -> None:
    """Refuse to overwrite a params file with other content.

    Raises: UsageError
    """
    with files.writing(path):
        if path.exists() and path.read_bytes() != text:
            raise UsageError(f"{path} already exists: move it, or choose another model_dir")


def to_huggingface(
    conversion: Conversion,
    path: Path,
    params: Any,
    checkpoint: checkpoints.Checkpoint,
    max_shard_bytes: int,
) -> None:
    """Write a checkpoint as a transformers model.

    Raises: UsageError if it does not match the params, or the folder already has a model
    """
    shapes, dtype = _weights(conversion, params)
    if lines := checkpoint.differences_from(
        {name: (shape, dtype.name) for name, shape in shapes.items()}
    ):
        raise UsageError(f"{checkpoint.path}: {len(lines)} tensors differ: {'; '.join(lines)}")

    def read(name: str) -> Array:
        return checkpoint.tensor(name)

    tensors = huggingface.tensors_to_huggingface(read, conversion.rules, shapes, dtype)
    config = {
        "model_type": conversion.model_type,
        **{theirs: getattr(params.model, ours) for theirs, ours in conversion.sizes.items()},
        **conversion.fixed,
        **conversion.to_config(params.model),
        "dtype": dtype.name,
    }
    names = huggingface.write_folder(path, config, tensors, max_shard_bytes)
    log.info(f"{len(tensors)} tensors of {checkpoint.path}: {path}, {', '.join(names)}")


def _weights(conversion: Conversion, params: Any) -> tuple[dict[str, tuple[int, ...]], Any]:
    """Return the shapes of the model's weights, and their dtype."""
    precision = params.runconfig.arithmetic
    dataset = conversion.example(params)
    traced = trace_model(conversion.model_fn, dataset, RunMode.PREDICT, params, precision)
    return {name: array.shape for name, array in traced.weights().items()}, np.dtype(precision)


def _sized(conversion: Conversion, folder: Folder, params: Any, target: Path) -> Any:
    """Return the params with the sizes of a config.json.

    Raises: UsageError for another model, or an unsupported value
    """
    config, where = folder.config, folder.path / "config.json"
    wanted = {"model_type": conversion.model_type, **conversion.fixed}
    lines = [f"{key} is missing" for key in conversion.sizes if key not in config]
    lines += [
        f"{key} must be {_plain(value)}, got {_plain(config[key])}"
        for key, value in wanted.items()
        if config.get(key, value) != value
    ]
    lines += [
        f"{key} must be a number, got {_plain(config[key])}"
        for key, ours in conversion.sizes.items()
        if key in config and _is_number(getattr(params.model, ours)) > _is_number(config[key])
    ]
    if lines:
        raise UsageError(f"{where}: {'; '.join(lines)}")
    sizes = {ours: config[theirs] for theirs, ours in conversion.sizes.items()}
    sizes |= conversion.from_config(config, params.model)
    raw = msgspec.to_builtins(params)
    raw["model"] |= sizes
    raw["runconfig"]["model_dir"] = str(target)
    try:
        return msgspec.convert(raw, conversion.schema)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unlike(conversion: Conversion, config: Mapping[str, Any]) -> list[str]:
    """List the keys that differ although the model has a single value for them."""
    return [
        f"{key} {_plain(config[key])} becomes {_plain(config[other])}: "
        f"the model has one value for {key} and {other}"
        for key, other in conversion.equal_keys.items()
        if config.get(key) not in (None, config[other])
    ]


def _require_tied(conversion: Conversion, folder: Folder) -> None:
    """Check that tied tensors are equal.

    Raises: UsageError for one that differs
    """
    for name, other in conversion.tied.items():
        spelled = (one for one in conversion.spelled(other) if one in folder.tensors)
        model_has = next(spelled, None)
        if name not in folder.tensors or model_has is None:
            continue
        first, second = (folder.tensors[one].read().raw for one in (name, model_has))
        if not np.array_equal(first, second):
            raise UsageError(f"{folder.path}: {name} differs from {other}, but the model ties them")


def _plain(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _shown(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
