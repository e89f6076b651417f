"""Recording of a recorder's state so far."""

from collections.abc import Mapping
from typing import Any

from csrun.pytorch.record.recording import LeafSource, Recording, Ref


def build_recording(recorder: Any, gradients: Mapping[str, Ref]) -> Recording:
    """Return the recording so far. gradients: by parameter.

    A step with its own updates has them in any order, so none of it is a forward or backward pass.
    """
    backward = recorder.backward
    end = len(recorder.operators) if recorder.has_updates else backward.forward_end
    return Recording(
        operators=tuple(recorder.operators),
        kinds=tuple(recorder.kinds),
        leaves=tuple(recorder.leaves),
        loss=backward.loss,
        loss_line=backward.line,
        forward_end=len(recorder.operators) if end is None else end,
        backward_end=len(recorder.operators) if recorder.has_updates else backward.end,
        gradients=gradients,
        first_gradients=backward.first_gradients,
        zeros=frozenset(backward.zeros),
        written={
            leaf.name: recorder.known[id(leaf.tensor)].value
            for leaf in recorder.leaves
            if leaf.source is LeafSource.BUFFER
            and recorder.known[id(leaf.tensor)].value != leaf.value
        },
        counters=dict(recorder.counters.increments),
        reads=tuple(recorder.reads),
        training=recorder.model.training,
        draws=tuple(map(str, recorder.draws.made)),
        host_leaves=recorder.host.leaves,
        row_axes=recorder.host.row_axes,
        shaped=frozenset(recorder.host.in_forward),
        without_gradient=tuple(
            name
            for name, parameter in recorder.parameters.items()
            if parameter.requires_grad and name not in gradients
        ),
    )
