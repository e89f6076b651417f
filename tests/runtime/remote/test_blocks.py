"""Gradients over a connection: equal bits, and sparse rows of an embedding."""

import socket
import threading

import numpy as np
import pytest

from csrun.executable.plan import PREFETCH_BYTES
from csrun.runtime.remote.blocks import BLOCK, GradientsOut, receive_gradients
from csrun.runtime.wire.tcp import SUM

ROWS, WIDTH = 3000, 800  # 9.6 MB, and no whole number of blocks


def passed(*arrays):
    """Received gradients of one group, step by step, and the bytes sent."""
    mine, its = socket.socketpair()
    found, counts = [], []

    class Counting:
        def sendall(self, data):
            counts[-1] += len(data)
            mine.sendall(data)

    def send():
        out = GradientsOut(Counting())
        for array in arrays:
            counts.append(0)
            out.send(0, array)

    with mine, its:
        thread = threading.Thread(target=send)
        thread.start()
        for array in arrays:
            room = np.full(array.shape, np.nan, array.dtype)
            receive_gradients(its, room, "the wafer")
            found.append(room)
        thread.join()
    return found, counts


def table(rows):
    """Gradients of an embedding whose batch has these rows."""
    gradients = np.zeros((ROWS, WIDTH), np.float32)
    gradients[rows] = np.random.default_rng(1).standard_normal((len(rows), WIDTH))
    return gradients.reshape(-1)


@pytest.mark.parametrize(
    "rows", [[], [0], [ROWS - 1], [5, 6, 7, 900, 2998], list(range(0, ROWS, 97))]
)
def test_of_a_table_the_rows_of_the_batch_travel(rows):
    sent = table(rows)
    (found,), (count,) = passed(sent)
    np.testing.assert_array_equal(found.view(np.uint32), sent.view(np.uint32))
    blocks = -(-sent.nbytes // BLOCK)
    assert count <= len(rows) * (4 * WIDTH + 2 * BLOCK) + blocks // 8 + 2 + 3 * SUM.size


def test_a_negative_zero_is_a_value():
    sent = table([])
    sent[12345] = -0.0
    (found,), _ = passed(sent)
    assert np.signbit(found).nonzero()[0].tolist() == [12345]


def test_what_has_values_everywhere_travels_as_a_whole_from_then_on():
    dense = np.ones(ROWS * WIDTH, np.float32)
    sent = (dense, table([1]), dense)
    found, counts = passed(*sent)
    for array, there in zip(found, sent, strict=True):
        np.testing.assert_array_equal(array, there)
    assert counts == [dense.nbytes + 1 + 2 * SUM.size] * 3


def test_a_small_group_is_not_looked_at():
    sent = np.zeros(PREFETCH_BYTES // 4 - 1, np.float32)
    (found,), (count,) = passed(sent)
    assert not found.any()
    assert count == sent.nbytes + 1 + 2 * SUM.size
