"""The optimizers around optimizers do what their papers say, in both modes, inside graphs and outside."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("mindspore")
STEPS = 5
RATE = 0.05
ALPHA = 0.25


def run_by() -> dict[str, list[float]]:
    """The largest differences of this rank's parameters to synchronous averaging, for each mode and way."""
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    ways = {
        "model": lambda *three: models.train_by_model(*three, []),
        "jit": lambda *three: models.train_by_jit(*three, nn.Identity()),
    }
    differences = {}
    for mode in models.MODES:
        models.use(mode)
        expected = simulated(group.rank, group.world)
        for way, train in ways.items():
            cell = models.network(seed=group.rank)  # all start from rank 0's all the same
            held = nn.SGD(cell.trainable_params(), RATE)
            optimizer = thinwire.mindspore.SynchronousAveraging(held, ALPHA, group)
            train(cell, optimizer, models.batches(STEPS, group.rank, group.world))
            pairs = zip(models.arrays(cell), expected)
            differences[f"{mode} {way}"] = max(float(abs(a - b).max()) for a, b in pairs)
    return differences


def simulated(rank: int, world: int):
    """The parameters of this rank by the law, with all ranks played here."""
    import mindspore_models as models

    cell = models.network(seed=0)
    weights = [models.arrays(cell) for _ in range(world)]
    data = [list(models.batches(STEPS, other, world)) for other in range(world)]
    for step in range(STEPS):
        gradients = [
            gradients_at(cell, mine, *batches[step]) for mine, batches in zip(weights, data)
        ]
        moved = [drawn(weights, other) for other in range(world)]
        weights = [
            [weight - RATE * gradient for weight, gradient in zip(*pair)]
            for pair in zip(moved, gradients)
        ]
    return weights[rank]


def gradients_at(cell, weights, inputs, labels):
    """The gradients of a network with these weights."""
    import mindspore as ms

    import mindspore_models as models

    for parameter, weight in zip(cell.trainable_params(), weights):
        parameter.asnumpy()[...] = weight
    loss = models.loss_function()

    def forward(inputs, labels):
        return loss(cell(inputs), labels)

    gradient = ms.grad(forward, None, cell.trainable_params())
    return [each.asnumpy().copy() for each in gradient(ms.Tensor(inputs), ms.Tensor(labels))]


def drawn(weights, rank):
    """w <- (1 - alpha) w + alpha mean(w)."""
    means = [sum(each) / len(weights) for each in zip(*weights)]
    return [(1 - ALPHA) * mine + ALPHA * mean for mine, mean in zip(weights[rank], means)]


def test_parameters_move_by_the_law(ranks):
    for differences in ranks(2, run_by):
        assert max(differences.values()) <= 1e-6, differences


def together() -> dict[str, float]:
    """How far pairs that have come together are from the mean of what they have learnt, by mode and dtype,
    in steps of float16. When they average depends on their speed."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group, step, found = thinwire.init(), 2.0**-10, {}
    for mode in models.MODES:
        models.use(mode)
        for dtype in (ms.float32, ms.float16):
            weight = ms.Parameter(ms.Tensor(np.full(64, 1.5), dtype), name=f"{mode}.{dtype}")
            optimizer = thinwire.mindspore.PairAveraging(nn.SGD([weight], 1.0), group, seed=3)
            moves = (np.random.default_rng(group.rank).random((20, 64)) < 0.3) * step
            if group.rank == 1:
                group.barrier()  # the first step of rank 1 takes up what rank 0 has learnt
            for moved in moves:
                optimizer((ms.Tensor(-moved, dtype),))
            if group.rank == 0:
                group.barrier()
            learnt = group.all_reduce(moves.sum(0).astype(np.float32), average=True)
            for _ in range(1000):
                optimizer((ms.Tensor(np.zeros(64), dtype),))
                now = weight.asnumpy().astype(np.float32)
                apart = abs(group.all_reduce(now.copy(), average=True) - now).max(keepdims=True)
                if group.all_reduce(apart)[0] == 0:
                    break
            found[f"{mode} {dtype}"] = float(abs(now - 1.5 - learnt).max() / step)
    return found


def test_pairs_come_together_at_their_mean(ranks):
    for found in ranks(2, together):
        assert max(found.values()) <= 1.0, found


def halves() -> dict[str, float]:
    """How far parameters of float16 are from those of float32, in steps of the dtype, and how far they
    went, after updates of rank 0 alone, each of one step."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    rounds, step = 40, 2.0**-10
    found = {}
    for mode in models.MODES:
        models.use(mode)
        weights = {}
        for dtype in (ms.float32, ms.float16):
            weight = ms.Parameter(ms.Tensor(np.full(64, 1.5), dtype), name=f"{mode}.{dtype}")
            optimizer = thinwire.mindspore.SynchronousAveraging(nn.SGD([weight], 1.0), ALPHA, group)
            moves = np.random.default_rng(0).random((rounds, 64)) < 0.1
            for moved in moves * (-step if group.rank == 0 else 0.0):
                optimizer((ms.Tensor(moved, dtype),))
            for _ in range(rounds):
                optimizer((ms.Tensor(np.zeros(64), dtype),))
            weights[str(dtype)] = weight.asnumpy().astype(np.float64)
        whole, half = weights.values()
        found[f"{mode} apart"] = float(abs(whole - half).max() / step)
        found[f"{mode} went"] = float((whole - 1.5).mean() / step)
    return found


def test_half_precision_moves_as_float32_does(ranks):
    for found in ranks(2, halves):
        for name, steps in found.items():
            assert steps > 1.0 if name.endswith("went") else steps <= 2.0, (name, steps, found)


def replaced() -> list[list[float]]:
    """Parameters of float16, by mode, that were not finite for some steps, after the program has
    replaced them."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group, found = thinwire.init(), []
    nothing = (ms.Tensor(np.zeros(3), ms.float16),)
    for mode in models.MODES:
        models.use(mode)
        weight = ms.Parameter(ms.Tensor(np.full(3, 1.5), ms.float16), name=mode)
        optimizer = thinwire.mindspore.PairAveraging(nn.SGD([weight], 1.0), group, seed=3)
        for values in ([np.inf, np.nan, 1.5], [1.5] * 3):
            weight.set_data(ms.Tensor(np.array(values), ms.float16))
            for _ in range(3):
                optimizer(nothing)
            group.barrier()
        found.append(weight.asnumpy().tolist())
    return found


def test_half_precision_recovers_from_what_is_not_finite(ranks):
    assert ranks(2, replaced) == [[[1.5] * 3] * 2] * 2


def updates() -> list[int]:
    """How often SynchronousSGD exchanges in three updates, by mode; and what it shows to callbacks."""
    import json

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    counts = []
    for mode in models.MODES:
        models.use(mode)
        cell = models.network()
        held = models.momentum(cell)
        optimizer = thinwire.mindspore.SynchronousSGD(held, "none", group := default_group())
        models.train_by_model(cell, optimizer, models.batches(3, group.rank, group.world), [])
        counts.append(json.loads(optimizer.synchronizer.record())["step"] + 1)
        assert optimizer.learning_rate is held.learning_rate
        assert optimizer.global_step.asnumpy()[0] == 3
    return counts


def default_group():
    """The group that is meant when none is given: the same one every time."""
    from thinwire.meeting import group_or_default

    return group_or_default(None)


def test_an_update_exchanges_once(ranks):
    for counts in ranks(2, updates):
        assert counts == [3, 3]
