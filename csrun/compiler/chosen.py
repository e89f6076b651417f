"""What was left to the compiler to choose, and what it chose: a compile that lies there knows both.

A question is a model and how it is to be compiled but for that: how many replicas there are, or in
which parts a batch is computed that does not fit.
"""

from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from csrun.cirh import print_module
from csrun.compiler import compile_directory
from csrun.compiler.options import CompileOptions
from csrun.executable import Plan


def question_of(module: ModuleOp, options: CompileOptions) -> str:
    """What a choice answers: a model as it is traced before that, and how it is compiled."""
    return compile_directory.checksum_of(print_module(module), options)


def chosen_before(question: str, *roots: Path) -> Plan | None:
    """The plan of a compile that answers the question; None where none lies in these folders.

    Compilers of one version choose alike: to take it costs no pass.
    """
    folders = (folder for root in roots for folder in sorted(root.glob("tfcs_*")))
    found = (compile_directory.read(folder) for folder in folders)
    plans = (executable.plan for executable in found if executable is not None)
    return next((plan for plan in plans if question in plan.chosen_for), None)
