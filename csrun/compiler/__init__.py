"""CIRH to an Executable: passes, kernel matching, layers, memory plan, code generation."""

from csrun.compiler.compile import CompileResult, compile_model
from csrun.compiler.errors import CompileError
from csrun.compiler.options import CompileOptions
from csrun.compiler.validate import validate_model

__all__ = ["CompileError", "CompileOptions", "CompileResult", "compile_model", "validate_model"]
