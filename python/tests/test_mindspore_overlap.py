"""In Graph mode buckets set out while backward continues; planning counts the whole step in every way."""

from __future__ import annotations

import json
import time

import pytest

pytestmark = pytest.mark.needs("mindspore")
LAYERS, WIDTH = 12, 200


def deep(nn, marks):
    """A network of equal layers, with something of `marks` before each but the first."""
    layers = [nn.Dense(WIDTH, WIDTH), nn.ReLU()]
    for number in range(1, LAYERS):
        layers += [marks(number), nn.Dense(WIDTH, WIDTH), nn.ReLU()]
    return nn.SequentialCell(layers)


def order() -> list[str]:
    """Gradients of layers and buckets of a step in Graph mode, in the order in which they are there."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    seen: list[str] = []

    def noted(what: str) -> ops.Custom:
        def note(tensor):
            seen.append(what)
            return tensor

        return ops.Custom(note, lambda shape: shape, lambda dtype: dtype, func_type="pyfunc")

    class Mark(nn.Cell):
        """Notes in backward that the layers behind it are done."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.note = noted(f"below {number}")

        def construct(self, tensor):
            return tensor

        def bprop(self, tensor, output, gradient):
            return (self.note(gradient),)

    class Noting(nn.Cell):
        """An operator of the reducer, behind a note that its inputs are there."""

        def __init__(self, operator, what: str) -> None:
            super().__init__(auto_prefix=False)
            self.operator, self.note = operator, noted(what)

        def construct(self, *inputs):
            return self.operator(self.note(inputs[0]), *inputs[1:])

    models.use("graph")
    cell = deep(nn, Mark)
    loss = nn.WithLossCell(cell, nn.MSELoss())
    optimizer = nn.SGD(cell.trainable_params(), 0.01)
    reducer = thinwire.mindspore.reducer(optimizer.parameters, "int8", thinwire.init())
    for number, bucket in enumerate(reducer.buckets):
        name = optimizer.parameters[bucket[0]].name
        reducer.ready[number] = Noting(reducer.ready[number], name)
    step = nn.TrainOneStepCell(loss, optimizer)
    step.grad_reducer = reducer
    inputs = ms.Tensor(np.ones((2, WIDTH), np.float32))
    for _ in range(3):
        seen.clear()
        step(inputs, inputs).asnumpy()
    return seen


def test_a_bucket_sets_out_before_the_layers_below_have_gradients(ranks):
    for seen in ranks(2, order):
        # The names count activations and marks as well.
        weights = [f"{3 * number}.weight" for number in range(LAYERS)]
        assert set(weights) < set(seen)
        assert all(seen.index(name) < seen.index("below 1") for name in weights[2:]), seen
        assert seen.index(weights[0]) > seen.index("below 1"), seen


def counted() -> list[bool]:
    """Whether the record of a step begins where the step before ended, in each way."""
    import mindspore as ms
    import numpy as np

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("pynative")
    group, found = thinwire.init(), []
    parameter = ms.Parameter(ms.ops.zeros((40, 50), ms.float32), name="weight")
    gradient = ms.Tensor(np.ones((40, 50), np.float32))
    for make in (thinwire.mindspore.reducer, thinwire.mindspore.exchange):
        average = make([parameter], "none", group)
        average((gradient,))[0].asnumpy()
        ended = time.monotonic()
        np.linalg.svd(np.ones((200, 200)))
        begun = time.monotonic()
        average((gradient,))[0].asnumpy()
        record = json.loads(average.synchronizer.record())
        ready = [bucket["ready_s"] for bucket in record["buckets"]]
        found.append(min([record["backward_s"], *ready]) >= begun - ended)
    return found


def test_what_is_computed_before_the_first_gradient_counts(ranks):
    assert ranks(2, counted) == [[True, True]] * 2
