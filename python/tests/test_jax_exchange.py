"""The exchange in compiled programs: which averages it gives, and how often it happens."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("jax")

CODECS = ("none", "f16", "int8", "int4:stochastic", "onebit", "topk:0.1", "powersgd:2", "auto")


def random_trees() -> list[list]:
    """For trees of random shape: how far averages are from the mean, and their bits."""
    import jax
    import numpy as np

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    answers = []
    for seed in range(12 if group.world < 4 else 6):
        params = models.random_tree(np.random.default_rng(seed))
        exchange = thinwire.jax.exchange(params, "none", bucket_bytes=64 << seed)
        draws = [np.random.default_rng([seed, rank]) for rank in range(group.world)]

        gradients = [models.drawn(params, draw) for draw in draws]
        averages = (jax.jit(exchange) if seed % 2 else exchange)(gradients[group.rank])
        mean = jax.tree.map(
            lambda *each: sum(np.asarray(x, "f4") for x in each) / len(each), *gradients
        )
        kept = jax.tree.map(lambda x, y: (x.shape, x.dtype) == (y.shape, y.dtype), averages, params)
        assert all(jax.tree.leaves(kept))
        # One rounding to the leaf's dtype.
        assert models.difference(averages, mean) < 0.02
        same = [x for x in jax.tree.leaves(averages) if x.dtype == "float32"]
        means = [
            y
            for x, y in zip(jax.tree.leaves(averages), jax.tree.leaves(mean))
            if x.dtype == "float32"
        ]
        answers.append([models.difference(same, means), models.bits(averages)])
    return answers


@pytest.mark.parametrize("world", [1, 2, 4])
def test_averages_of_any_tree_are_the_mean(ranks, world):
    answers = ranks(world, random_trees)
    assert all(answer == answers[0] for answer in answers)
    assert max(gap for gap, _ in answers[0]) < 1e-6


def each_codec() -> dict[str, list]:
    """Bits of parameters, and the loss, after a training with each codec."""
    import jax
    import optax

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    answers = {}
    for codec in CODECS:
        optimizer = thinwire.jax.averaged(
            optax.adam(1e-2), models.parameters(), codec, bucket_bytes=1024, seed=3
        )
        params = models.train(optimizer, models.batches(group.rank, group.world))
        found = [models.loss(params, batch) for batch in models.batches(steps=4)]
        answers[codec] = [models.bits(params), float(jax.numpy.mean(jax.numpy.stack(found)))]
    return answers


def test_ranks_have_the_same_bits_with_every_codec(ranks):
    first, second = ranks(2, each_codec)
    assert first == second
    losses = [loss for _, loss in first.values()]
    assert max(losses) < 1.2 * min(losses)
    assert len({bits for bits, _ in first.values()}) > 5


def counts() -> dict[str, int]:
    """By how many steps the core moves on in programs of all kinds."""
    import jax
    from jax import lax

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    params = {"w": jax.numpy.ones((4, 3)), "b": jax.numpy.ones(2, "bfloat16")}
    exchange = thinwire.jax.exchange(params, "none", bucket_bytes=16)
    gradients = jax.tree.map(lambda x: x * (group.rank + 1), params)
    mean = jax.tree.map(lambda x: x * (group.world + 1) / 2, params)
    answers, seen = {}, 0

    def count(name: str, averages=None) -> None:
        nonlocal seen
        jax.effects_barrier()
        now = exchange.synchronizer.state()[1]["step"][1]
        now = int(sum(x * y for x, y in zip(jax.numpy.frombuffer(now, "f4").tolist(), (2**24, 1))))
        answers[name], seen = now - seen, now
        assert averages is None or models.difference(averages, mean) == 0, name

    compiled = jax.jit(exchange).lower(gradients).compile()
    jax.eval_shape(exchange, gradients)
    jax.make_jaxpr(exchange)(gradients)
    count("traced and compiled 0")
    count("compiled ahead 1", compiled(gradients))
    count("outside 1", exchange(gradients))
    jax.jit(lambda tree: (exchange(tree), tree)[1])(gradients)
    count("unused 1")
    count(
        "donated 1", jax.jit(exchange, donate_argnums=0)(jax.tree.map(jax.numpy.array, gradients))
    )
    count("remat 1", jax.jit(jax.checkpoint(exchange))(gradients))
    scan = jax.jit(lambda tree: lax.scan(lambda c, _: (exchange(c), None), tree, length=4)[0])
    count("scan 4", scan(gradients))
    count("fori 3", jax.jit(lambda t: lax.fori_loop(0, 3, lambda _, c: exchange(c), t))(gradients))

    def loop(tree):
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, exchange(c[1])), (0, tree))

    count("while 2", jax.jit(loop)(gradients)[1])
    chosen = jax.jit(lambda take, tree: lax.cond(take, exchange, lambda t: t, tree))
    count("taken 1", chosen(True, gradients))
    chosen(False, gradients)
    count("not taken 0")

    def accumulated(tree):
        return exchange(lax.scan(lambda c, _: (c, None), tree, length=5)[0])

    count("accumulated 1", jax.jit(accumulated)(gradients))
    return answers


def test_a_step_that_runs_exchanges_once(ranks):
    for answer in ranks(2, counts):
        assert answer == {name: int(name.split()[-1]) for name in answer}


def from_the_cache(folder: str) -> list:
    """What a program gives that XLA has compiled and one that JAX has found in its cache, and the steps."""
    import jax

    import thinwire.jax

    group = thinwire.init()
    found = []
    jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
    jax.config.update("jax_compilation_cache_dir", f"{folder}/{group.rank}")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    ones = {"w": jax.numpy.ones(1000)}
    exchange, averages = thinwire.jax.exchange(ones, "none", group), []
    for number in range(2):
        step = jax.jit(lambda tree: jax.tree.map(lambda x: 3 * x, exchange(tree)))
        given = {"w": ones["w"] * (group.rank + number)}
        averages.append(float(jax.block_until_ready(step(given))["w"][0]))
        jax.clear_caches()
    hits = sum(event == "/jax/compilation_cache/cache_hits" for event in found)
    return [averages, exchange.record()["step"] + 1, hits > 0]


def test_a_program_from_the_cache_exchanges_once(ranks, tmp_path):
    assert ranks(2, from_the_cache, arguments=[str(tmp_path)]) == [[[1.5, 4.5], 2, True]] * 2


def again() -> dict[str, str]:
    """What is said of programs that call an exchange twice, and nothing of those that do so in turns."""
    import jax
    from jax import lax

    import thinwire.jax

    thinwire.init()
    tree = {"w": jax.numpy.ones(3)}
    exchange = thinwire.jax.exchange(tree, "none")
    inner = jax.jit(lambda tree: exchange(tree))
    other = jax.jit(lambda tree: exchange(tree))

    def scan(step, tree, **options):
        return lax.scan(lambda carry, _: (step(carry), None), tree, length=4, **options)[0]

    programs = {
        "twice": lambda tree: exchange(exchange(tree)),
        "a nested program twice": lambda tree: inner(inner(tree)),
        "two nested programs": lambda tree: inner(other(tree)),
        "two in a nested one": jax.jit(jax.jit(lambda tree: inner(inner(tree)))),
        "a loop and once": lambda tree: exchange(scan(exchange, tree)),
        "a loop that is unrolled": lambda tree: scan(inner, tree, unroll=2),
        "a program": lambda tree: jax.jit(inner)(tree),
        "a loop": lambda tree: scan(inner, tree),
        "branches": lambda tree: lax.cond(tree["w"][0] > 0, inner, other, tree),
    }
    answers = {}
    for name, program in programs.items():
        try:
            jax.jit(program).lower(tree)
            answers[name] = ""
        except thinwire.InvalidError as error:
            answers[name] = str(error)
    return answers


def test_a_program_calls_an_exchange_once(ranks):
    (answers,) = ranks(1, again)
    fine = [name for name, said in answers.items() if not said]
    assert fine == ["a program", "a loop", "branches"]
    assert all(said.startswith("a second call") for said in answers.values() if said)


def by_callbacks() -> list:
    """Bits of averages by XLA's handlers, and by the calls that other devices than CPUs have; an error."""
    import jax
    import jax.numpy as jnp

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    params = {"layers": jnp.ones((3, 8, 40)), "out": jnp.ones((40, 4), jnp.bfloat16)}

    def step(exchange):
        def block(hidden, layer):
            number, weights = layer
            weights = exchange.mark(weights, number)
            return jnp.tanh(hidden @ weights @ jnp.ones((40, 8)) / 320), None

        def loss(params, inputs):
            hidden, _ = jax.lax.scan(block, inputs, (jnp.arange(3), params["layers"]))
            return jnp.mean(hidden @ jnp.ones((8, 40)) @ params["out"])

        return jax.jit(lambda params, inputs: exchange(jax.grad(loss)(params, inputs)))

    answers = []
    for backend in ("cpu", "gpu"):
        jax.default_backend = lambda backend=backend: backend
        exchange = thinwire.jax.exchange(
            params, "int8", warmup_steps=0, bucket_bytes=512, scanned=["layers"]
        )
        compiled, found = step(exchange), []
        for number in range(3):
            inputs = jax.random.normal(jax.random.key(number + 10 * group.rank), (4, 8))
            found.append(models.bits(compiled(params, inputs)))
        answers.append([found, len(exchange.record()["buckets"])])
    try:
        group.barrier()  # an error overtakes the last bytes of a step, and those of this call
        with thinwire.jax.guard(exchange):
            if group.rank == 1:
                raise ValueError("no label 11")
            jax.block_until_ready(compiled(params, inputs))
    except (ValueError, thinwire.PeerError) as error:
        answers.append(f"{type(error).__name__}: {error}")
    return answers


def test_callbacks_average_as_handlers_do(ranks):
    first, second = ranks(2, by_callbacks)
    assert first[:2] == second[:2]
    assert first[0] == first[1] and first[0][1] > 3
    assert first[2].startswith("PeerError: ") and "\n" not in first[2]
    assert "rank 1 raised ValueError: no label 11" in first[2]


def compiled_ahead() -> list[float]:
    """What programs give of which the exchanges are gone, the first one before the second was made."""
    import gc

    import jax

    import thinwire.jax

    thinwire.init()
    zeros, ones = {"w": jax.numpy.zeros(10)}, {"w": jax.numpy.ones(10)}

    def program():
        # With momentum a single rank exchanges, too, and each call adds another half of the last one.
        exchange = thinwire.jax.exchange(zeros, "none", momentum_correction=0.5, warmup_steps=0)
        return jax.jit(exchange).lower(ones).compile()

    programs = []
    for _ in range(2):
        programs.append(program())
        jax.clear_caches()
        gc.collect()
    first, second = programs
    return [float(each(ones)["w"][0]) for each in (first, second, first, second)]


def test_a_program_compiled_ahead_keeps_its_exchange(ranks):
    assert ranks(1, compiled_ahead) == [[1.0, 1.0, 1.5, 1.5]]


def in_either_order() -> list[float]:
    """Two exchanges in one program, which rank 1 writes in the other order."""
    import jax

    import thinwire.jax

    group = thinwire.init()
    one, other = {"w": jax.numpy.ones(1000)}, {"v": jax.numpy.ones(10)}
    first = thinwire.jax.exchange(one, "none", group)
    second = thinwire.jax.exchange(other, "none", group)

    @jax.jit
    def step(x, y):
        if group.rank == 0:
            x, y = first(x), second(y)
        else:
            y, x = second(y), first(x)
        return x["w"][0], y["v"][0]

    return [
        float(each) for each in step({"w": one["w"] * group.rank}, {"v": other["v"] * group.rank})
    ]


def test_exchanges_of_one_program_may_be_in_any_order(ranks):
    assert ranks(2, in_either_order) == [[0.5, 0.5]] * 2


def not_finite() -> list[list]:
    """Whether parameters moved in each step, where rank 1 has a NaN in the third."""
    import jax
    import optax

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    params = models.parameters()
    optimizer = thinwire.jax.averaged(optax.apply_if_finite(optax.sgd(0.1), 3), params, "int8")
    state, moved = optimizer.init(params), []
    for at, (inputs, targets) in enumerate(models.batches(group.rank, group.world, 6)):
        inputs = inputs * float("nan") if (at, group.rank) == (2, 1) else inputs
        gradients = jax.grad(models.loss)(params, (inputs, targets))
        updates, state = jax.jit(optimizer.update)(gradients, state, params)
        now = optax.apply_updates(params, updates)
        moved.append(models.difference(params, now) > 0)
        params = now
    return [moved, models.bits(params)]


def test_a_nan_on_one_rank_skips_the_step_on_all(ranks):
    first, second = ranks(2, not_finite)
    assert first == second
    assert first[0] == [True, True, False, True, True, True]
