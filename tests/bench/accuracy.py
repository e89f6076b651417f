"""Accuracy of the tiny BERT, compared with a table of both neighbours and with PyTorch's.

Both sides begin with the same weights and take the same batches, as many as the params file says,
of the standard library's sources; what is masked in unseen sources is then to be found.
"""

import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from result import Result
from threadpoolctl import threadpool_limits

TESTS = Path(__file__).parents[1]
MODELS = TESTS.parent / "reference_models"
sys.path[:0] = [str(TESTS), str(MODELS / "bert")]

WITHIN = 0.01  # of PyTorch's accuracy


def bench(folder: Path) -> None:
    """Print csrun's masked accuracy over the table's, and over PyTorch's."""
    import torch
    from data import eval_input_fn, train_input_fn
    from model import model_fn
    from safetensors.numpy import load_file
    from support.reference_models import SMALL_MODELS, over
    from support.torch_bert import TorchBert
    from support.trainings import beside, by_neighbours, masked_accuracy, nested_batches

    from csrun.estimator import CerebrasEstimator

    prepare = [sys.executable, str(MODELS / "gpt2" / "prepare_data.py"), "--out", str(folder)]
    subprocess.run(prepare, check=True, capture_output=True)
    files = [folder / f"{name}.bin" for name in ("train", "validation")]
    params = over(SMALL_MODELS["bert"].shipped(files[0]), *files)
    steps, evaluated = params.runconfig.max_steps, params.runconfig.eval_steps
    config = params.runconfig
    estimator = CerebrasEstimator(model_fn, folder / "model_dir", config=config, params=params)
    estimator.train(train_input_fn, max_steps=1)
    first = load_file(folder / "model_dir" / "model-ckpt-0.safetensors")
    estimator.train(train_input_fn, max_steps=steps)
    ours = estimator.evaluate(eval_input_fn, evaluated)["masked_accuracy"]
    torch.set_num_threads(1)
    weights = {name: value for name, value in first.items() if "_sum/" not in name}
    peer = TorchBert(torch, weights, params.model)
    with threadpool_limits(1, user_api="blas"):
        beside(peer, params, nested_batches(train_input_fn(params), steps))
        theirs = masked_accuracy(peer, nested_batches(eval_input_fn(params), evaluated))
    name = f"bert, tiny, {steps:,} steps"
    table = by_neighbours(folder)
    show(name, ours, "a table of both neighbours", table, 1.0)
    show(name, ours, "PyTorch eager", theirs, (theirs - WITHIN) / theirs)


def show(name: str, ours: float, baseline: str, theirs: float, wanted: float) -> None:
    unit = "of masked bytes"
    Result("accuracy", name, "csrun", unit, ours, baseline, ours / theirs, 1, wanted).print()


if __name__ == "__main__":
    # A compile leaves a link in the working directory.
    with tempfile.TemporaryDirectory(prefix="csrun-bench-") as place, chdir(place):
        bench(Path(place))
