"""Rounds in the modes of the core on pytrees: their laws, and a state that continues bit for bit."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("jax", "optax")

LIMIT = 2e-6
MODES = {
    "local:2": "int8",
    "diloco:4,fragments=2,delay=3": "int4",
    "sma:0.3": "none",
    "pair:2": None,
}


def moved(params, rank: int, step: int):
    """Parameters after a step on a rank's own data, in their dtypes."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    draw = np.random.default_rng([rank, step])

    def after(leaf):
        value = np.asarray(leaf, np.float32) - 0.01 * draw.normal(size=leaf.shape)
        return jnp.asarray(value.astype(leaf.dtype))

    return jax.tree.map(after, params)


def laws() -> dict[str, float]:
    """How far from their laws parameters are after steps of random trees, at most."""
    import jax
    import numpy as np

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()

    def mean(params):
        arrays = [np.array(leaf, np.float32) for leaf in jax.tree.leaves(params)]
        return [group.all_reduce(each, average=True) for each in arrays]

    worst = {"all ranks have the average": 0.0, "the mean is kept": 0.0, "a local round": 0.0}
    averages = ("local:1", "diloco:1,outer=sgd,lr=1", "sma:1")
    means = ("sma:0.3",)
    for seed in range(2):
        tree = models.random_tree(np.random.default_rng(seed))
        tree = jax.tree.map(lambda x: x.astype("float32"), tree)
        begun = models.drawn(tree, np.random.default_rng(seed))
        for mode in (*averages, *means):
            params = begun
            rounds = thinwire.jax.Rounds(params, mode, "none", group)
            for step in range(3):
                params = moved(params, group.rank, step)
                before = mean(params)
                params = rounds.step(params)
                assert rounds.record()["ended"] == 1
                law = "all ranks have the average" if mode in averages else "the mean is kept"
                after = params if mode in averages else mean(params)
                worst[law] = max(worst[law], models.difference(after, before))
        rounds, params, apart = thinwire.jax.Rounds(begun, "pair:1", None, group), begun, begun
        for step in range(3):
            params, apart = (moved(each, group.rank, step) for each in (params, apart))
            params = rounds.step(params)
        after = [np.array(leaf, np.float32) for leaf in jax.tree.leaves(rounds.finish(params))]
        law = "the mean is kept"
        worst[law] = max(worst[law], models.difference(after, mean(apart)))
        rounds = thinwire.jax.Rounds(begun, "local:2", "int4", group)
        params = rounds.step(moved(begun, group.rank, 0))
        assert models.difference(params, moved(begun, group.rank, 0)) == 0  # none was due
        params = rounds.step(params)
        assert rounds.record()["ended"] == 1
        worst["a local round"] += len(set(group.all_gather(np.array([models.bits(params)])))) - 1
    return worst


def test_laws_of_the_modes(ranks):
    for worst in ranks(3, laws):
        assert worst.pop("a local round") == 0
        assert all(gap < LIMIT for gap in worst.values()), worst


def continued() -> dict[str, list]:
    """By mode: the bits of a training that went on, and of one that was resumed, of every dtype."""
    import jax
    import numpy as np

    import jax_models as models
    import thinwire.jax

    group, found = thinwire.init(), {}
    tree = {"tree": models.random_tree(np.random.default_rng(5)), "empty": np.zeros((0, 3), "f4")}
    begun = models.drawn(tree, np.random.default_rng(0))

    def train(rounds, params, steps):
        for step in steps:
            params = rounds.step(moved(params, group.rank, step))
        return params

    for mode, codec in MODES.items():
        rounds = thinwire.jax.Rounds(begun, mode, codec, group)
        params, state = rounds.state_dict(train(rounds, begun, range(7)))
        assert all(isinstance(each, np.ndarray) for each in state.values())
        resumed = thinwire.jax.Rounds(begun, mode, codec, group)
        again = resumed.load_state_dict(begun, state)
        assert [leaf.dtype for leaf in jax.tree.leaves(again)] == [
            leaf.dtype for leaf in jax.tree.leaves(begun)
        ]
        ends = [
            these.finish(train(these, start, range(7, 13)))
            for these, start in ((rounds, params), (resumed, again))
        ]
        found[mode] = [models.bits(each) for each in ends]
    return found


def test_a_state_continues_bit_for_bit_and_ranks_end_alike(ranks):
    first, *others = ranks(3, continued)
    # Pairs average when ranks have time, so that two trainings end with different bits.
    assert all(went == again for mode, (went, again) in first.items() if mode != "pair:2")
    assert all(other == first for other in others)


def refused() -> dict[str, str]:
    """What is said to modes, parameters and states that do not fit."""
    import jax
    import jax.numpy as jnp

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    params = models.parameters()
    rounds = thinwire.jax.Rounds(params, "local:2", group=group)
    _, state = rounds.state_dict(params)
    apart = jax.tree.map(lambda x: x + group.rank, params)
    attempts = {
        "mode": lambda: thinwire.jax.Rounds(params, "diloco:x", group=group),
        "gossip": lambda: thinwire.jax.Rounds(params, "gossip", group=group),
        "apart": lambda: thinwire.jax.Rounds(apart, "local:2", group=group),
        "integers": lambda: thinwire.jax.Rounds({"n": jnp.arange(3)}, "local:2", group=group),
        "traced": lambda: jax.jit(rounds.step)(params),
        "other": lambda: rounds.step({**params, "scale": jnp.ones(2)}),
        "tree": lambda: rounds.step({"scale": params["scale"]}),
        "state": lambda: rounds.load_state_dict(params, {}),
        "saved": lambda: thinwire.jax.Rounds(params, "local:3").load_state_dict(params, state),
    }
    said = {}
    for name, attempt in attempts.items():
        with pytest.raises(thinwire.InvalidError) as caught:
            attempt()
        said[name] = str(caught.value)
    return said


def test_what_does_not_fit_is_refused_in_one_line(ranks):
    expected = {
        "mode": "mode diloco has 'x' steps",
        "gossip": "unknown mode 'gossip', expected local:EVERY, diloco:EVERY, sma:PULL or pair:EVERY",
        "apart": "(hint: params = thinwire.jax.broadcast(params)",
        "integers": "n is int32, expected float32, float16 or bfloat16",
        "traced": "expected arrays (hint: call Rounds and its methods outside of jax.jit)",
        "other": "scale is float32[2], in the beginning float32[]",
        "tree": "the parameters are a different pytree",
        "state": "the state is empty",
        "saved": "the state is of mode local:2 on 2 ranks, this training is of mode local:3 on 2",
    }
    for said in ranks(2, refused):
        for name, part in expected.items():
            assert part in said[name] and "\n" not in said[name], said[name]
