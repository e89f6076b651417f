"""Factors of NAdam's and RAdam's updates that depend on the step."""

from functools import lru_cache

NEGLIGIBLE = 1e-20  # subtracted from 1


def nesterov_share(beta1: float, decay: float, step: int) -> float:
    """Return NAdam's mu of step `step`, from 1."""
    return float(beta1 * (1 - 0.5 * 0.96 ** (step * decay)))


@lru_cache(maxsize=64)
def nesterov_product(beta1: float, decay: float, steps: int, least: float = NEGLIGIBLE) -> float:
    """Return the product of mu over the first steps, or a product that is already below `least`."""
    product = 1.0
    for step in range(1, steps + 1):
        product *= nesterov_share(beta1, decay, step)
        # Later factors cannot change 1 - product, and a long run has millions of them.
        if product <= least:
            break
    return product


def nesterov_factors(beta1: float, decay: float, index: int) -> tuple[float, float]:
    """Return NAdam's factors of the gradient and of the first moment at step `index`, from 0.

    Source: Dozat 2016, algorithm 2
    """
    now, ahead = (nesterov_share(beta1, decay, step) for step in (index + 1, index + 2))
    product = nesterov_product(beta1, decay, index + 1)
    return (1 - now) / (1 - product), ahead / (1 - product * ahead)


def rectification(beta2: float, index: int) -> float:
    """Return RAdam's r sqrt(1 - beta2^t) at step `index`, from 0; 0 while v has no variance.

    Source: Liu et al. 2020, algorithm 2
    """
    kept = beta2 ** (index + 1)
    most = 2 / (1 - beta2) - 1
    length = most - 2 * (index + 1) * kept / (1 - kept)
    # Above 4 in the paper; above 5 in PyTorch, whose rule this is.
    if length <= 5:
        return 0.0
    rectified = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
    return float((rectified * (1 - kept)) ** 0.5)
