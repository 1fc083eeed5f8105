"""Momentum that is added up before the exchange is that of the optimizer, where nothing is lost."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("mindspore")
STEPS = 8


def corrected() -> dict[str, float]:
    """How far each way is from nn.Momentum with the plain exchange."""
    import numpy as np
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("graph")
    group = thinwire.init()
    factor = {"codec": "none", "group": group, "momentum_correction": 0.9}

    def data():
        return models.batches(STEPS, group.rank, group.world)

    def sgd(cell):
        return nn.SGD(cell.trainable_params(), learning_rate=0.05)

    expected = models.network()
    average = thinwire.mindspore.exchange(expected.trainable_params(), "none", group)
    models.train_by_loop(expected, models.momentum(expected), data(), average)
    found = {}
    for way, train, exchange in [
        ("loop", models.train_by_loop, thinwire.mindspore.exchange),
        ("cell", models.train_by_cell, thinwire.mindspore.reducer),
    ]:
        cell = models.network()
        optimizer = sgd(cell)
        train(cell, optimizer, data(), exchange(optimizer.parameters, **factor))
        found[way] = cell
    cell = found["callback"] = models.network()
    exchange = thinwire.mindspore.GradExchange(**factor)
    models.train_by_model(cell, sgd(cell), data(), [exchange])
    assert any(name.startswith("momentum.") for name in exchange.synchronizer.state()[1])

    def distance(cell):
        pairs = zip(models.arrays(cell), models.arrays(expected), strict=True)
        return max(float(np.abs(one - other).max()) for one, other in pairs)

    return {way: distance(cell) for way, cell in found.items()}


@pytest.mark.parametrize("world", [1, 2])
def test_without_loss_it_is_the_optimizers_momentum(ranks, world):
    for distances in ranks(world, corrected, timeout=120):
        assert max(distances.values()) < 1e-5, distances


def test_a_factor_out_of_range_is_refused_before_anybody_is_met():
    import thinwire
    import thinwire.mindspore

    for factor in (1, -0.1, float("nan")):
        with pytest.raises(thinwire.InvalidError, match="expected a number from 0 to below 1"):
            thinwire.mindspore.GradExchange("none", momentum_correction=factor)
