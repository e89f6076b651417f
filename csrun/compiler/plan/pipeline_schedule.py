"""Order in which a pipelined wafer makes a step's visits, minibatch by minibatch."""

from collections.abc import Sequence

from csrun.executable import MinibatchVisit


def interleave(stages: Sequence[int], minibatches: int) -> tuple[MinibatchVisit, ...]:
    """1F1B schedule: each stage fills up with forwards, then does a backward after each forward.

    stages: stage of each visit, in a step's order: a plain chain of two has the stages 0, 1, 1, 0
        in training and 0, 1 without. The pipeline is simulated: in each round every stage makes the
        last of its visits whose input is ready, unless more minibatches have passed the stage, and
        will return, than there are stages in between. Every visit sees the minibatches in order.

    Source: Narayanan et al. 2019, PipeDream, section 3.2, one flush per step
    """
    done = [0] * len(stages)  # minibatches of each visit
    returns = {stage: number for number, stage in enumerate(stages)}  # the stage's last visit
    visits_of: dict[int, list[int]] = {}
    for number, stage in enumerate(stages):
        visits_of.setdefault(stage, []).append(number)

    def is_ready(visit: int, before: Sequence[int]) -> bool:
        """Return whether a visit's next minibatch was ready at the beginning of the round."""
        arrived = before[visit - 1] if visit else minibatches
        last = returns[stages[visit]]
        out = done[visit] - done[last]  # passed, and not returned
        has_room = visit == last or out < (last - visit + 1) // 2
        return done[visit] < arrived and has_room

    calls: list[MinibatchVisit] = []
    while done and done[-1] < minibatches:
        # All stages of a round see the state at its beginning, because they work concurrently.
        before = list(done)
        for stage in reversed(visits_of):
            ready = (visit for visit in reversed(visits_of[stage]) if is_ready(visit, before))
            visit = next(ready, None)
            if visit is not None:
                calls.append(MinibatchVisit(visit, done[visit]))
                done[visit] += 1
    return tuple(calls)
