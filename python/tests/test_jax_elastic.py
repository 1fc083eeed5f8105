"""Elastic jobs of JAX: ranks are killed, join and leave while a pytree is trained."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

import launch
from test_mindspore_elastic import once

pytestmark = pytest.mark.needs("jax", "optax")
SAMPLES, BATCH, PASSES = 91, 12, 2
STEPS_OF_A_PASS = 8
STEPS = PASSES * STEPS_OF_A_PASS
ROUNDS = int(os.environ.get("ROUNDS", "1"))
"""Kills, each followed by a join, in one job: as many as wanted, by hand."""
PATIENCE_S = launch.PATIENCE_S + 30.0 * (ROUNDS - 1)
WAIT_S = PATIENCE_S - 60.0
TOKEN = "0123456789abcdef"


def data():
    """The number of each sample, inputs and targets."""
    import numpy as np

    draw = np.random.default_rng(5)
    inputs, targets = draw.normal(size=(SAMPLES, 16)), draw.normal(size=(SAMPLES, 4))
    return np.arange(SAMPLES), inputs.astype("f4"), targets.astype("f4")


def functions(compiled):
    """The functions of a step; each adds its name to `compiled` when JAX traces it.

    What is drawn for a sample depends on the job's key and the sample alone.
    """
    import jax
    import jax.numpy as jnp
    import optax

    import jax_models as models

    optimizer = optax.adam(1e-2)

    def losses(params, key, ids, inputs, targets):
        noise = jax.vmap(lambda each: jax.random.normal(jax.random.fold_in(key, each), (16,)))(ids)
        of_one = jax.vmap(lambda *each: models.loss(params, each))
        return of_one(inputs + 0.1 * noise, targets)

    @jax.jit
    def gradient(state, ids, inputs, targets, weights):
        compiled.append("gradient")

        def loss(params):
            return jnp.dot(weights, losses(params, state["key"], ids, inputs, targets))

        return jax.value_and_grad(loss)(state["params"])

    def update(state, gradients):
        compiled.append("update")
        updates, moments = optimizer.update(gradients, state["moments"], state["params"])
        return {
            "params": optax.apply_updates(state["params"], updates),
            "moments": moments,
            "key": jax.random.split(state["key"])[0],
        }

    params = models.parameters()
    state = {"params": params, "moments": optimizer.init(params), "key": jax.random.key(3)}
    # The old state is given to the new one, as in a training without Thinwire.
    return state, gradient, jax.jit(update, donate_argnums=0)


def train(folder, deaths, options):
    """Trains as one process, which gets the signal and at the step that `deaths` names for it."""
    import jax

    import jax_models as models
    import thinwire.jax
    from thinwire.jax.broadcast import is_key

    me, compiled = os.environ["RANK"], []
    # Rank 0 begins the job.
    begins_after = options.get("late", {}).get(me, 1)
    until(lambda: me == "0" or len(lines(folder, "0")) >= begins_after)
    state, gradient, update = functions(compiled)
    if me != "0":  # another state, until this rank takes over that of the job
        state = jax.tree.map(lambda x: x if is_key(x) else x + 1, state)
        state["key"] = jax.random.key(int(me))
    elastic = thinwire.jax.Elastic(
        state, state["params"], batch=BATCH, codec=options.get("codec", "none"), rows=5
    )
    loader = elastic.loader(data(), seed=1)
    worlds = {int(step): world for step, world in options.get("worlds", {}).items()}
    for _ in loader.passes(options.get("passes", PASSES)):
        for batch in loader:
            # Nobody goes on alone who is to have company: it joins after the step.
            if elastic.world < worlds.get(elastic.steps, 1):
                until(elastic._members.wants_end)
                worlds[elastic.steps + 1] = worlds[elastic.steps]
            step, deadly = deaths.get(me, (None, None))
            # A signal that a rank may be too late for comes after its first step from then on.
            is_due = elastic.steps == step or deadly == signal.SIGTERM and elastic.steps >= step
            if is_due:
                os.kill(os.getpid(), deadly)
            share = elastic._deal.weight
            loss = elastic.step(gradient, update, *batch)
            if loss is not None:
                said = [elastic.steps, elastic.world, elastic.rank, batch[0].tolist()]
                with Path(folder, me).open("a") as file:
                    print(json.dumps([*said, float(loss) * share]), file=file)
    plain = {name: elastic.state[name] for name in ("params", "moments")}
    key = jax.random.key_data(elastic.state["key"]).tolist()
    return {
        "alike": [models.bits(plain), key, elastic.steps],
        "params": [leaf.tolist() for leaf in jax.tree.leaves(plain["params"])],
        "compiled": sorted(compiled),
    }


def until(true):
    """Waits for something that other processes do."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "the others do not come"
        time.sleep(0.005)


def lines(folder, me):
    """The steps that a process has made."""
    file = Path(folder, me)
    return file.read_text().splitlines() if file.exists() else []


def run(world, deaths=(), **options):
    """What each process of a job returned, None where it was killed or has left, the steps that each has
    made, as number, world, rank and samples, and the losses of all steps."""
    from thinwire._core import Coordinator

    deaths = {str(rank): fate for rank, fate in dict(deaths).items()}
    with tempfile.TemporaryDirectory() as folder:
        coordinator = Coordinator("127.0.0.1:0", TOKEN, state=Path(folder, "state"))
        env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
        outcomes = launch.run(
            world, train, arguments=[folder, deaths, options], env=env, timeout=PATIENCE_S
        )
        said = [[json.loads(line) for line in lines(folder, str(rank))] for rank in range(world)]
    for outcome in outcomes:
        killed = deaths.get(str(outcome.rank), (None, None))[1] == signal.SIGKILL
        assert outcome.code == (-signal.SIGKILL if killed else 0), launch.report(outcome)
    steps = options.get("passes", PASSES) * STEPS_OF_A_PASS
    losses = dict.fromkeys(range(1, steps + 1), 0.0)
    for step, *_, loss in sum(said, []):
        losses[step] += loss
    seen = [[line[:-1] for line in each] for each in said]
    return [outcome.result for outcome in outcomes], seen, losses


def check(results, calm):
    """Ranks that are left are alike, near one process, and have compiled each function once."""
    left = [result for result in results if result is not None]
    assert all(result["alike"] == left[0]["alike"] for result in left)
    assert left[0]["alike"][1:] == calm["alike"][1:]
    assert all(result["compiled"] == ["gradient", "update"] for result in left)
    return left


@pytest.fixture(scope="module")
def calm():
    return alone(PASSES)


def alone(passes):
    """What one process has returned, its steps, and its losses."""
    (result,), (seen,), losses = run(1, passes=passes)
    steps = passes * STEPS_OF_A_PASS
    assert result["alike"][2] == steps and losses[steps] < losses[1]
    return result, seen, losses


def test_ranks_that_die_leave_and_join_train_as_one_process(calm):
    # Rank 0 goes on alone when rank 1 is killed, until ranks 2 and 3 come, of which one leaves.
    deaths = {1: (4, signal.SIGKILL), 2: (12, signal.SIGTERM)}
    results, seen, losses = run(4, deaths, worlds={1: 2, 9: 3}, late={"2": 6, "3": 6})
    result, steps, expected = calm
    for left in check(results, result):
        assert torn(left["params"]) == pytest.approx(torn(result["params"]), abs=1e-5)
    assert results[1] is None and results[2] is None
    once(seen, steps)
    assert losses == pytest.approx(expected, abs=1e-5)
    worlds = [world for _, world, *_ in seen[0]]
    assert worlds[3] == 2 and worlds[5] == 1 and max(worlds) == 3 and worlds[-1] == 2


def test_rounds_of_kills_and_joins_have_the_losses_of_one_process(calm):
    # Rank 0 stays. Every four steps another rank joins, and is killed in its second step.
    joins = {number + 1: 4 * number + 1 for number in range(ROUNDS)}
    passes = max(PASSES, -(-4 * ROUNDS // STEPS_OF_A_PASS))
    result, steps, expected = calm if passes == PASSES else alone(passes)
    results, seen, losses = run(
        ROUNDS + 1,
        {rank: (at + 2, signal.SIGKILL) for rank, at in joins.items()},
        worlds=dict.fromkeys(joins.values(), 2),
        late={str(rank): at for rank, at in joins.items()},
        passes=passes,
    )
    (left,) = check(results, result)
    assert torn(left["params"]) == pytest.approx(torn(result["params"]), abs=1e-5)
    assert losses == pytest.approx(expected, abs=1e-5)
    once(seen, steps)
    assert [world for _, world, *_ in seen[0]][: 4 * ROUNDS] == [1, 1, 2, 1] * ROUNDS


def torn(nested):
    """The numbers in nested lists."""
    return sum(map(torn, nested), []) if isinstance(nested, list) else [nested]


def test_a_codec_goes_on_with_a_joiner_and_without_the_lost(calm):
    death = {1: (4, signal.SIGKILL)}
    results, seen, _ = run(3, death, worlds={1: 2, 9: 2}, late={"2": 6}, codec="powersgd:2")
    check(results, calm[0])
    once(seen, calm[1])


def refused():
    """What is said to trainings that would not be elastic, or would leave out samples."""
    import jax
    import numpy as np

    import thinwire.jax

    state, gradient, update = functions([])
    elastic = thinwire.jax.Elastic(state, state["params"], batch=BATCH, codec="none")
    loader = elastic.loader(data(), seed=1)
    batch = next(iter(loader))

    def without_rows():
        elastic.step(gradient, update, *(each[1:] for each in batch))

    def donating():
        given = jax.jit(gradient, donate_argnums=0)
        elastic.step(given, update, *batch)

    def under(**variables):
        os.environ.update(variables)
        thinwire.jax.Elastic(state, state["params"], batch=BATCH)

    attempts = {
        "rows": without_rows,
        "value": lambda: elastic.step(lambda *_: state["params"], update, *batch),
        "gradients": lambda: elastic.step(lambda *_: (0.0, state), update, *batch),
        "batch": lambda: next(iter(loader)),
        "next": lambda: elastic.step(gradient, lambda state, _: state["params"], *batch),
        "data": lambda: elastic.loader((np.ones(3), np.ones(4))),
        "leaf": lambda: thinwire.jax.Elastic({"name": "x"}, state["params"], batch=BATCH),
        "donated": donating,
        "torchrun": lambda: under(TORCHELASTIC_RUN_ID="1", WORLD_SIZE="2"),
    }
    said = {}
    for name, attempt in attempts.items():
        with pytest.raises(thinwire.InvalidError) as caught:
            attempt()
        said[name] = str(caught.value)
    return said


def test_trainings_that_would_not_be_elastic_are_refused_in_one_line():
    from thinwire._core import Coordinator

    expected = {
        "rows": "data of 11 rows, expected the 12 of the loader's batch",
        "value": "gradient has returned dict, expected a value and gradients",
        "gradients": "the gradients are a different pytree",
        "batch": "a new batch was requested before a step with the last one",
        "next": "structured differently from the given state of 17",
        "data": "the data have [3, 4] rows",
        "leaf": 'name is "x", expected an array or a number',
        "donated": "gradient has donated the state, which is needed again",
        "torchrun": "torchrun ends all its 2 ranks when one dies",
    }
    coordinator = Coordinator("127.0.0.1:0", TOKEN)
    env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
    (said,) = launch.results(launch.run(1, refused, env=env))
    for name, part in expected.items():
        assert part in said[name] and "\n" not in said[name], said[name]
