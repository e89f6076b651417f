"""train/params_train.yaml: all parameters of a run, defaults filled in."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from csrun.base.files import write_whole, writing


def write(model_dir: Path, mode: str, params: Any) -> Path:
    """Write the parameters of a run in `mode` (train, eval), and return the file's path.

    `params` is a mapping, or a struct or dataclass of such.
    """
    path = model_dir / mode / f"params_{mode}.yaml"
    plain = msgspec.to_builtins(params, enc_hook=str)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, yaml.safe_dump(plain, sort_keys=False).encode())
    return path
