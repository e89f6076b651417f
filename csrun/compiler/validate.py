"""The first half of a compile: does the library have kernels for a model?"""

from xdsl.dialects.builtin import ModuleOp

from csrun.compiler.matching import MatchedModel, match_kernels
from csrun.compiler.passes import Begin, Show, no_progress, run_passes
from csrun.compiler.passes.run import MATCHING


def validate_model(
    module: ModuleOp, show: Show | None = None, begin: Begin = no_progress
) -> MatchedModel:
    """Run the passes and match kernels; nothing is placed, planned or written.

    `module` is changed. `show` gets each stage of the passes, `begin` the name of each
    stage that begins.

    Raises: CompileError naming operator, layer and the user's line when no kernel matches
    """
    run_passes(module, show=show, begin=begin)
    begin(MATCHING)
    return match_kernels(module)
