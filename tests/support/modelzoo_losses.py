"""Losses of a Model Zoo model's training in a Session, over its own input function.

usage: modelzoo_losses.py CHECKOUT NAME PARAMS MODEL_DIR STEPS; the weights begin as those of the
checkpoint of step 0 in MODEL_DIR; prints the losses as JSON
"""

import importlib
import json
import sys
from itertools import islice
from pathlib import Path

checkout, name, params_file, folder, steps = sys.argv[1:]
TESTS = Path(__file__).parents[1]
sys.path[:0] = [checkout, str(TESTS), str(TESTS / "support" / "modelzoo_stubs")]

from support import tf_models  # noqa: E402

import cerebras.tf.cs_estimator  # noqa: E402, F401  puts names into TensorFlow

package = f"modelzoo.transformers.tf.{name}"
params = importlib.import_module(f"{package}.utils").get_params(params_file)
read = importlib.import_module(f"{package}.data").train_input_fn
data = list(islice(read(params).as_numpy_iterator(), int(steps)))
first = tf_models.weights(Path(folder), 0)
model_fn = importlib.import_module(f"{package}.model").model_fn
losses, _ = tf_models.in_session(model_fn, first, data, params)
print("RESULTS", json.dumps(losses))
