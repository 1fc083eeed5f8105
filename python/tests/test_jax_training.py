"""Training with averaged gradients is that of one process with the whole batch."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("jax", "optax", "flax", "equinox")

LIMIT = 1e-6


def optax_optimizers() -> dict[str, list]:
    """How far parameters are from those of one process, and their bits, with each optimizer."""
    import optax

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    optimizers = {
        "sgd": optax.sgd(0.05, momentum=0.9),
        "adam": optax.adam(1e-3),
        "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-3)),
    }
    answers = {}
    for name, optimizer in optimizers.items():
        one = models.train(optimizer, models.batches())
        averaged = thinwire.jax.averaged(optimizer, models.parameters(), "none", bucket_bytes=1024)
        many = models.train(averaged, models.batches(group.rank, group.world))
        answers[name] = [models.difference(one, many), models.bits(many)]
    return answers


def flax_and_equinox() -> dict[str, list]:
    """The same for models of flax and of equinox."""
    import equinox
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    network = nn.Sequential([nn.Dense(32), nn.LayerNorm(), nn.relu, nn.Dense(4)])
    of_flax = network.init(jax.random.key(1), jnp.zeros((1, 16)))
    module = equinox.nn.MLP(16, 4, 32, 2, key=jax.random.key(2))
    of_equinox, rest = equinox.partition(module, equinox.is_inexact_array)

    def loss_of_flax(params, batch):
        return jnp.mean((network.apply(params, batch[0]) - batch[1]) ** 2)

    def loss_of_equinox(params, batch):
        return jnp.mean((jax.vmap(equinox.combine(params, rest))(batch[0]) - batch[1]) ** 2)

    cases = {"flax": (of_flax, loss_of_flax), "equinox": (of_equinox, loss_of_equinox)}
    answers = {}
    for name, (params, loss) in cases.items():
        optimizer = optax.adam(1e-3)
        one = models.train(optimizer, models.batches(), params, loss)
        averaged = thinwire.jax.averaged(optimizer, params, "none")
        many = models.train(averaged, models.batches(group.rank, group.world), params, loss)
        answers[name] = [models.difference(one, many), models.bits(many)]
    return answers


@pytest.mark.parametrize("train", [optax_optimizers, flax_and_equinox])
def test_two_ranks_train_as_one_process(ranks, train):
    first, second = ranks(2, train)
    assert first == second
    assert all(gap < LIMIT for gap, _ in first.values()), first


def test_four_ranks_train_as_one_process(ranks):
    answers = ranks(4, optax_optimizers)
    assert all(answer == answers[0] for answer in answers)
    assert all(gap < LIMIT for gap, _ in answers[0].values()), answers[0]


def broadcast() -> list:
    """What all ranks have after a broadcast of what rank 1 has."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import thinwire.jax

    group = thinwire.init()
    mine = {
        "f16": jnp.full((2, 3), group.rank, jnp.bfloat16),
        "key": jax.random.key(group.rank),
        "old key": jax.random.PRNGKey(group.rank),
        "count": jnp.int32(group.rank),
        "numpy": np.full(2, group.rank, np.float64),
        # As weights of another framework, which rank 1 alone has loaded.
        "turned": np.arange(6.0).reshape(2, 3).T if group.rank == 1 else np.zeros((3, 2)),
        "number": 0.5 + group.rank,
        "none": None,
        "empty": jnp.zeros((0, 4)),
    }
    found = thinwire.jax.broadcast(mine, root=1)
    kinds = jax.tree.map(lambda x, y: type(x) is type(y), mine, found)
    drawn = float(jax.random.uniform(found["key"]))
    return [
        all(jax.tree.leaves(kinds)),
        drawn == float(jax.random.uniform(jax.random.key(1))),
        int(found["count"]),
        found["number"],
        np.asarray(found["f16"], "f4").tolist(),
        found["turned"].tolist(),
        [str(each.dtype) for each in (found["f16"], found["key"], found["numpy"])],
    ]


def test_a_broadcast_gives_all_ranks_the_same(ranks):
    for answer in ranks(2, broadcast):
        kinds = ["bfloat16", "key<fry>", "float64"]
        turned = [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
        assert answer == [True, True, 1, 1.5, [[1.0] * 3] * 2, turned, kinds]


def restarted() -> list:
    """Bits of a training, and of one that was saved in the middle and continued, with residuals."""
    import jax
    import numpy as np
    import optax

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()

    def averaged(params):
        return thinwire.jax.averaged(
            optax.sgd(0.05), params, "int4", bucket_bytes=1024, warmup_steps=0
        )

    batches = list(models.batches(group.rank, group.world, 20))
    whole = models.train(averaged(models.parameters()), batches)
    optimizer = averaged(models.parameters())
    half = models.train(optimizer, batches[:10])
    saved = optimizer.exchange.state_dict()
    assert all(isinstance(each, np.ndarray) for each in saved.values())
    residuals = [each for name, each in saved.items() if ".residual." in name]
    assert max(float(abs(each).max(initial=0)) for each in residuals) > 0
    optimizer = averaged(half)
    optimizer.exchange.load_state_dict(saved)
    resumed = models.train(optimizer, batches[10:], half)
    return [models.bits(whole), models.bits(resumed), jax.tree.map(lambda x: x.tolist(), saved)]


def continued(entries: list) -> list:
    """How much ranks owe together after they have loaded what others have saved."""
    import jax.numpy as jnp
    import numpy as np

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    exchange = thinwire.jax.exchange(models.parameters(), "int4", bucket_bytes=1024)
    kinds = {"plan": np.uint8, "world": np.int32}

    def array(name, values):
        return np.array(values, kinds.get(name.partition(".")[2], np.float32))

    given = {name: array(name, values) for each in entries for name, values in each.items()}
    exchange.load_state_dict(given)
    owed = exchange.state_dict()[f"rank{group.rank}.residual.first/kernel"]
    assert jnp.shape(owed) == (16, 32)
    return owed.sum().item()


def test_a_restart_continues_with_the_same_bits(ranks):
    first, second = ranks(2, restarted)
    assert first[0] == first[1] == second[0] == second[1]
    entries = [first[2], second[2]]
    owed = [
        sum(map(sum, each[f"rank{rank}.residual.first/kernel"]))
        for rank, each in enumerate(entries)
    ]
    (alone,) = ranks(1, continued, arguments=[entries])
    assert alone == pytest.approx(sum(owed), abs=1e-5)
