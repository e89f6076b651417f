"""The optimizer's state in a Session's block: PyTorch's where it is read, refused where written."""

import copy
from collections import defaultdict

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def momenta(state):
    return [float(s["momentum_buffer"].sum()) for s in state.values()]


def test_the_loop_reads_what_the_steps_so_far_have_made(tmp_path):
    def loop(kit):
        found = []
        for _ in range(3):
            found += kit.train_once()
            found += momenta(kit.optimizer.state)
            first = next(iter(kit.model.parameters()))
            found.append(kit.optimizer.state[first]["momentum_buffer"].abs().max().item())
            found += momenta(copy.deepcopy(kit.optimizer.state))
        return found

    beside(loop, tmp_path)


def clear(optimizer):
    optimizer.state.clear()


def replace(optimizer):
    optimizer.state = defaultdict(dict)


def remove(optimizer):
    del optimizer.state[optimizer.param_groups[0]["params"][0]]


def zero(optimizer):
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


def put(optimizer):
    for state in optimizer.state.values():
        state["momentum_buffer"] = torch.zeros_like(state["momentum_buffer"])


@pytest.mark.parametrize("write", [clear, replace, remove, zero, put])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_write_in_the_block_is_refused_with_the_line(write, is_last, tmp_path):
    kit = Kit()
    with (
        pytest.raises(UsageError, match=r"\.py:\d+: the optimizer's state is written"),
        kit.session(tmp_path),
    ):
        kit.train_once()
        write(kit.optimizer)
        if not is_last:
            kit.train_once()


def test_the_optimizer_has_its_own_state_after_the_block(tmp_path):
    kit = Kit()
    own = kit.optimizer.state
    with kit.session(tmp_path):
        kit.train_once()
    assert kit.optimizer.state is own
    assert len(momenta(own)) == 4
