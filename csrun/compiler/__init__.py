"""CIRH to an Executable: passes, kernel matching, layers, memory plan, code generation."""

from csrun.compiler.batch_parts import in_parts, rebatch
from csrun.compiler.compile import CompileResult, compile_model
from csrun.compiler.compile_directory import chosen_before, is_compiled, question_of, questions_of
from csrun.compiler.errors import CompileError, TooLargeError
from csrun.compiler.matching import validate_model
from csrun.compiler.options import CompileOptions
from csrun.compiler.passes import PassObserver, Stage, Verification
from csrun.compiler.passes.pass_manager import STAGES
from csrun.compiler.replicas import ReplicaChoice, choose_replicas
from csrun.compiler.separate_update import separate_update, update_options

__all__ = [
    "STAGES",
    "CompileError",
    "CompileOptions",
    "CompileResult",
    "PassObserver",
    "ReplicaChoice",
    "Stage",
    "TooLargeError",
    "Verification",
    "choose_replicas",
    "chosen_before",
    "compile_model",
    "in_parts",
    "is_compiled",
    "question_of",
    "questions_of",
    "rebatch",
    "separate_update",
    "update_options",
    "validate_model",
]
