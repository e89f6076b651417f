"""The first half of a compile: does the library have kernels for a model?"""

from xdsl.dialects.builtin import ModuleOp

from csrun.compiler.matching import MatchedModel, match_kernels
from csrun.compiler.passes import Show, run_passes


def validate_model(module: ModuleOp, show: Show | None = None) -> MatchedModel:
    """Run the passes and match kernels; nothing is placed, planned or written.

    `module` is changed. `show` gets each stage of the passes.

    Raises: CompileError naming operator, layer and the user's line when no kernel matches
    """
    run_passes(module, show=show)
    return match_kernels(module)
