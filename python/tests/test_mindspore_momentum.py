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
    for distances in ranks(world, corrected):
        assert max(distances.values()) < 1e-5, distances


def test_a_factor_out_of_range_is_refused_before_anybody_is_met():
    import thinwire
    import thinwire.mindspore

    for factor in (1, -0.1, float("nan")):
        with pytest.raises(thinwire.InvalidError, match="expected a number from 0 to below 1"):
            thinwire.mindspore.GradExchange("none", momentum_correction=factor)


def warmed_up() -> dict[str, list[bool]]:
    """For each way whether the averages of the first steps are those of `none`."""
    import mindspore as ms
    import numpy as np

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("pynative")
    group = thinwire.init()
    generator = np.random.default_rng(group.rank)
    shape = (40, 50)
    gradients = [ms.Tensor(generator.standard_normal(shape).astype(np.float32)) for _ in range(4)]
    parameter = ms.Parameter(ms.ops.zeros(shape, ms.float32), name="weight")
    found = {}
    for make in (thinwire.mindspore.reducer, thinwire.mindspore.exchange):
        warm = make([parameter], "topk:0.1", group, warmup_steps=2)
        raw = make([parameter], "none", group)
        pairs = [(warm((each,))[0].asnumpy(), raw((each,))[0].asnumpy()) for each in gradients]
        found[make.__name__] = [bool((one == other).all()) for one, other in pairs]
    return found


def test_a_warm_up_travels_raw(ranks):
    expected = [True, True, False, False]
    assert ranks(2, warmed_up) == [{"reducer": expected, "exchange": expected}] * 2
