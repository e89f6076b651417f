"""The script of a job that trains a drawn loop: its seed is the argument."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of tests/support

from support.random_loops.loop import train
from support.random_loops.recipes import draw

import cerebras_torch as cbtorch

outcome = train(draw(int(sys.argv[1])), Path("model_dir"))
cbtorch.master_print("numbers", *(number.hex() for number in outcome.numbers))
