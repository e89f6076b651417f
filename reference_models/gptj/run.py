"""Train, evaluate or compile a GPT-J, by --mode.

csrun_wse python-ws run.py --mode train    on a CS system, by weight streaming
python run.py --mode eval                  in this process, on the CPU
"""

from pathlib import Path

from data import eval_input_fn, train_input_fn
from model import model_fn
from params import Params

from csrun.params import main_for, run

DEFAULT_PARAMS = Path(__file__).parent / "configs" / "params_continuous_pretraining.yaml"

if __name__ == "__main__":
    run(main_for(model_fn, train_input_fn, eval_input_fn), Params, DEFAULT_PARAMS)
