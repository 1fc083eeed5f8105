"""The optimizers around optimizers do what their papers say, in both modes, inside graphs and outside."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("mindspore")
STEPS = 5
RATE = 0.05
ALPHA = 0.25


def run_by(name: str) -> dict[str, list[float]]:
    """The largest differences to the law, of this rank's parameters, for each mode and way."""
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    wrap = {
        "drawn": lambda held: thinwire.mindspore.SynchronousAveraging(held, ALPHA, group),
        "paired": lambda held: thinwire.mindspore.PairAveraging(held, group, seed=3),
    }[name]
    ways = {
        "model": lambda *three: models.train_by_model(*three, []),
        "jit": lambda *three: models.train_by_jit(*three, nn.Identity()),
    }
    differences = {}
    for mode in models.MODES:
        models.use(mode)
        expected = simulated(name, group.rank, group.world)
        for way, train in ways.items():
            cell = models.network(seed=group.rank)  # all start from rank 0's all the same
            optimizer = wrap(nn.SGD(cell.trainable_params(), RATE))
            train(cell, optimizer, models.batches(STEPS, group.rank, group.world))
            pairs = zip(models.arrays(cell), expected)
            differences[f"{mode} {way}"] = max(float(abs(a - b).max()) for a, b in pairs)
    return differences


def simulated(name: str, rank: int, world: int):
    """The parameters of this rank by the law, with all ranks played here."""
    import mindspore_models as models

    move = {"drawn": drawn, "paired": paired}[name]
    cell = models.network(seed=0)
    weights = [models.arrays(cell) for _ in range(world)]
    data = [list(models.batches(STEPS, other, world)) for other in range(world)]
    for step in range(STEPS):
        gradients = [
            gradients_at(cell, mine, *batches[step]) for mine, batches in zip(weights, data)
        ]
        moved = [move(weights, other, step) for other in range(world)]
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


def drawn(weights, rank, step):
    """w <- (1 - alpha) w + alpha mean(w)."""
    means = [sum(each) / len(weights) for each in zip(*weights)]
    return [(1 - ALPHA) * mine + ALPHA * mean for mine, mean in zip(weights[rank], means)]


def paired(weights, rank, step):
    """w <- (w + w') / 2."""
    from thinwire._core import partner

    met = partner(rank, len(weights), 3, step)
    other = weights[rank if met is None else met]
    return [(mine + theirs) / 2 for mine, theirs in zip(weights[rank], other)]


@pytest.mark.parametrize(("name", "world"), [("drawn", 2), ("paired", 2), ("paired", 3)])
def test_parameters_move_by_the_law(ranks, name, world):
    for differences in ranks(world, run_by, arguments=[name]):
        assert max(differences.values()) <= 1e-6, differences


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
    wraps = {
        "drawn": lambda held: thinwire.mindspore.SynchronousAveraging(held, ALPHA, group),
        "paired": lambda held: thinwire.mindspore.PairAveraging(held, group, seed=3),
    }
    found = {}
    for mode in models.MODES:
        models.use(mode)
        for name, wrap in wraps.items():
            weights = {}
            for dtype in (ms.float32, ms.float16):
                weight = ms.Parameter(
                    ms.Tensor(np.full(64, 1.5), dtype), name=f"{mode}.{name}.{dtype}"
                )
                optimizer = wrap(nn.SGD([weight], 1.0))
                moves = np.random.default_rng(0).random((rounds, 64)) < 0.1
                for moved in moves * (-step if group.rank == 0 else 0.0):
                    optimizer((ms.Tensor(moved, dtype),))
                for _ in range(rounds):
                    optimizer((ms.Tensor(np.zeros(64), dtype),))
                weights[str(dtype)] = weight.asnumpy().astype(np.float64)
            whole, half = weights.values()
            found[f"{mode} {name} apart"] = float(abs(whole - half).max() / step)
            found[f"{mode} {name} went"] = float((whole - 1.5).mean() / step)
    return found


def test_half_precision_moves_as_float32_does(ranks):
    for found in ranks(2, halves):
        for name, steps in found.items():
            assert steps > 1.0 if name.endswith("went") else steps <= 2.0, (name, steps, found)


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
