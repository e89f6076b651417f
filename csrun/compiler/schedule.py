"""The order in which a pipelined wafer runs layers on the minibatches of a step."""

from csrun.executable import PipelineStep


def one_forward_one_backward(groups: int, minibatches: int) -> tuple[PipelineStep, ...]:
    """1F1B: each group fills up with forwards, then takes a backward after each forward.

    The pipeline is simulated: in each round every group takes, if its turn has come, the next
    backward whose gradient is there, else the next forward whose input is there, as long as it
    holds no more minibatches than stand between it and the pipeline's end. Every group sees the
    minibatches in their order, both ways.

    Source: Narayanan et al. 2019, PipeDream, section 3.2, one flush a step
    """
    forwards, backwards = [0] * groups, [0] * groups  # minibatches that each group has done
    order: list[PipelineStep] = []
    while min(backwards) < minibatches:
        done_forward, done_backward = list(forwards), list(backwards)
        for group in reversed(range(groups)):
            above = done_backward[group + 1] if group + 1 < groups else done_forward[group]
            below = done_forward[group - 1] if group else minibatches
            held = forwards[group] - backwards[group]
            if backwards[group] < min(above, forwards[group]):
                order.append(PipelineStep(group, backwards[group], backward=True))
                backwards[group] += 1
            elif forwards[group] < min(below, minibatches) and held < groups - group:
                order.append(PipelineStep(group, forwards[group], backward=False))
                forwards[group] += 1
    return tuple(order)


def forward_only(groups: int, minibatches: int) -> tuple[PipelineStep, ...]:
    """Without gradients: every group takes the next minibatch as soon as its input is there."""
    rounds = range(groups + minibatches - 1)
    return tuple(
        PipelineStep(group, now - group, backward=False)
        for now in rounds
        for group in reversed(range(groups))
        if 0 <= now - group < minibatches
    )
