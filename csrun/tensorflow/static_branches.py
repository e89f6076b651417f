"""tf.cond whose predicate is the same in each step: one branch is called, without control flow."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from csrun.tensorflow.graph_folding import value_of
from csrun.tensorflow.tf_version import tf


@contextmanager
def static_branches() -> Iterator[None]:
    """Resolve constant predicates within the block."""
    with ExitStack() as stack:
        for module in (tf, tf.compat.v1):
            stack.enter_context(patch.object(module, "cond", partial(_cond, module.cond)))
        yield


def _cond(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a branch; the original for a predicate that is not known, or other arguments."""
    named = dict(zip(("pred", "true_fn", "false_fn"), arguments, strict=False)) | options
    predicate, branches = named.get("pred"), (named.get("false_fn"), named.get("true_fn"))
    if predicate is None or len(arguments) > 3 or not all(map(callable, branches)):
        return original(*arguments, **options)
    known = value_of(predicate) if hasattr(predicate, "op") else predicate
    if known is None:
        return original(*arguments, **options)
    branch: Any = branches[bool(known)]
    return branch()
