"""Trains or evaluates fc_mnist.

csrun_wse python-ws run.py --mode train    on a CS system, by weight streaming
python run.py --mode eval                  in this process, on the CPU
"""

from pathlib import Path

from data import eval_input_fn, train_input_fn
from model import model_fn
from params import Params

from csrun.estimator import CerebrasEstimator
from csrun.params import Arguments, Mode, run

DEFAULT_PARAMS = Path(__file__).parent / "configs" / "params.yaml"


def main(arguments: Arguments[Params]) -> None:
    """Do what the command line says."""
    params, config = arguments.params, arguments.params.runconfig
    estimator = CerebrasEstimator(model_fn, config.model_dir, config, params)
    path = config.checkpoint_path
    match arguments.mode:
        case Mode.TRAIN:
            estimator.train(train_input_fn, config.steps, config.max_steps, path)
        case Mode.EVAL:
            estimator.evaluate(eval_input_fn, config.eval_steps, path)
        case Mode.EVAL_ALL:
            estimator.evaluate_all(eval_input_fn, config.eval_steps)
        case Mode.TRAIN_AND_EVAL:
            estimator.train_and_evaluate(
                train_input_fn, eval_input_fn, config.max_steps, config.eval_steps
            )
        case Mode.PREDICT:
            samples = estimator.predict(eval_input_fn, config.eval_steps, path)
            for number, sample in enumerate(samples):
                print(f"sample {number}: {sample['digit']}")
        case Mode.COMPILE_ONLY:
            estimator.compile(train_input_fn)
        case Mode.VALIDATE_ONLY:
            estimator.validate(train_input_fn)


if __name__ == "__main__":
    run(main, Params, DEFAULT_PARAMS)
