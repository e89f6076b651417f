"""csrun checkpoint convert: one converter per format."""

import logging
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csrun.base.errors import UsageError
from csrun.records import state_dict
from csrun.records.checkpoints import open_checkpoint
from csrun.records.torch_names import PROGRAM, TORCH

if TYPE_CHECKING:
    from csrun.params.convert import Conversion

log = logging.getLogger("csrun")

SCRIPT = "convert.py"
PICKLED = (".pt", ".pth")  # of torch.save


def to_torch(path: Path, target: Path) -> None:
    """Write a checkpoint's weights as a state_dict.

    Raises: UsageError for an existing file, or an unknown suffix; CsrunError for a damaged
    checkpoint
    """
    _require_ending(target)
    if target.exists():
        raise UsageError(f"{target}: already exists: choose another file")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: {target.parent} is not a folder: create it or choose another")
    found = open_checkpoint(path)
    count = _files_of(target).write_file(target, found)
    log.info(f"Converted {count} tensors of {found.path} to {target}")
    if left := len(found.manifest.tensors) - len(found.weights):
        log.info(f"Not converted: {left} tensors of optimizer and loss-scale state")
    if found.manifest.identity.get(PROGRAM) != TORCH:
        log.info("Names and layouts are csrun's: only checkpoints of PyTorch loops have PyTorch's")


def from_torch(path: Path, target: Path) -> None:
    """Create a checkpoint, at step 0, from a state_dict.

    Raises: UsageError for an invalid file, or if the folder has checkpoints already
    """
    _require_ending(path)
    tensors = _files_of(path).tensors_of(path)
    written = state_dict.make_checkpoint(target, path, tensors)
    log.info(f"Converted {len(tensors)} tensors of {path} to {written}")


def _require_ending(path: Path) -> None:
    if path.suffix not in (*PICKLED, ".safetensors"):
        raise UsageError(f"{path}: must end in .safetensors, or in .pt or .pth for torch.load")


def _files_of(path: Path) -> Any:
    """Return the module that reads and writes files with this suffix."""
    if path.suffix not in PICKLED:
        return state_dict
    try:
        from csrun.pytorch.weights import state_dict_files
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path}: needs PyTorch: pip install 'torch==2.13.*', or use a .safetensors file"
        ) from error
    return state_dict_files


def from_huggingface(path: Path, target: Path, model: Path, params: Path | None) -> None:
    """Create a checkpoint from a saved model, with the rules in the model's convert.py."""
    from csrun.params.command_line import load
    from csrun.params.convert import from_huggingface

    conversion = _conversion(model)
    given = load(conversion.schema, params or conversion.default_params)
    from_huggingface(conversion, path, given, target)


def to_huggingface(
    path: Path, target: Path, model: Path, params: Path | None, max_shard_size: str
) -> None:
    """Write a checkpoint as transformers saves a model, with the rules in the model's
    convert.py.
    """
    from csrun.params.command_line import load
    from csrun.params.convert import PARAMS_FILE, to_huggingface
    from csrun.records.huggingface import size_in_bytes

    conversion, found = _conversion(model), open_checkpoint(path)
    places = (found.model_dir / name for name in ("train/params_train.yaml", PARAMS_FILE))
    existing = next((place for place in places if place.exists()), None)
    file = params or existing or conversion.default_params
    most = size_in_bytes(max_shard_size)
    to_huggingface(conversion, target, load(conversion.schema, file), found, most)


def _conversion(model: Path) -> "Conversion":
    """Return the CONVERSION of a model's convert.py, with its folder on the import path."""
    script = model / SCRIPT if model.is_dir() else model
    spec = spec_from_file_location("convert", script)
    if not script.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"--model {model}: no {SCRIPT} found there")
    sys.path.insert(0, str(script.parent.resolve()))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Conversion | None = getattr(module, "CONVERSION", None)
    if found is None:
        raise UsageError(f"--model {model}: {script} has no CONVERSION")
    return found
