"""Train, evaluate or compile a Keras model of handwritten digits, by --mode.

csrun_wse python-ws run.py --mode train    on a CS system, by weight streaming
python run.py --mode eval                  in this process, on the CPU
"""

from pathlib import Path

from data import eval_input_fn, train_input_fn
from model import build_model
from params import Params

from csrun.keras import KerasModelToCerebrasEstimator
from csrun.params import main_for, run

DEFAULT_PARAMS = Path(__file__).parent / "configs" / "params.yaml"

if __name__ == "__main__":
    main = main_for(build_model, train_input_fn, eval_input_fn, KerasModelToCerebrasEstimator)
    run(main, Params, DEFAULT_PARAMS)
