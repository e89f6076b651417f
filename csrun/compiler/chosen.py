"""Record of the options that the compiler chose, stored with each compile.

A question is a model and how it is to be compiled but for that: how many replicas there are, or in
which parts a batch is computed that does not fit.
"""

from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from csrun.cirh import print_module
from csrun.compiler import compile_directory
from csrun.compiler.options import CompileOptions
from csrun.executable import Plan, is_in_plan


def question_of(module: ModuleOp, options: CompileOptions) -> str:
    """Return the key of a choice: the traced model before it, and how it is compiled."""
    return questions_of(module, options)[0]


def questions_of(module: ModuleOp, *each: CompileOptions) -> list[str]:
    """Return the keys of several ways to compile a model, whose text is made once."""
    text = print_module(module)
    return [compile_directory.checksum_of(text, options) for options in each]


def is_compiled(question: str, root: Path) -> bool:
    """Return whether a compile of a model lies there that left nothing to choose."""
    return compile_directory.path_of(root, question).is_dir()


def chosen_before(question: str, *roots: Path) -> Plan | None:
    """The plan of a compile that answers the question; None where none lies in these folders.

    Compilers of one version choose alike: to take it costs no pass.
    """
    folders = (folder for root in roots for folder in sorted(root.glob("tfcs_*")))
    found = (compile_directory.read(each) for each in folders if is_in_plan(question, each))
    plans = (executable.plan for executable in found if executable is not None)
    return next((plan for plan in plans if question in plan.chosen_for), None)
