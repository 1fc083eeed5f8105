"""TensorFlow on two ranks trains as one process does on the whole batch, with equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs("tensorflow")
STEPS, ROWS = 6, 8


def model_of(tf) -> dict[str, Any]:
    """Variables of a small network: an embedding, two layers, a scalar, and one without a gradient."""
    draws = np.random.default_rng(3)
    shapes = {"table": (20, 6), "hidden": (6, 7), "bias": (7,), "out": (7, 1), "scale": ()}
    shapes |= {"unused": (3,), "empty": (0, 4)}
    return {
        name: tf.Variable(draws.normal(size=shape).astype(np.float32), name=name)
        for name, shape in shapes.items()
    }


def loss_of(tf, model, rows, labels):
    """The squared error of some rows."""
    found = tf.reduce_mean(tf.gather(model["table"], rows), axis=1)
    found = tf.tanh(found @ model["hidden"] + model["bias"]) @ model["out"] * model["scale"]
    return tf.reduce_mean((found[:, 0] - labels) ** 2) + 0.0 * tf.reduce_sum(model["empty"])


def batches(rank: int, world: int):
    """This rank's part of each batch."""
    draws = np.random.default_rng(5)
    for _ in range(STEPS):
        rows, labels = draws.integers(0, 20, (ROWS, 3)), draws.normal(size=ROWS).astype(np.float32)
        part = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
        yield rows[part], labels[part]


def trained(tf, wrap, rank: int, world: int, graph: bool = True) -> dict[str, list[float]]:
    """The variables after some steps of SGD; `wrap` gives the gradients of a tape."""
    model = model_of(tf)

    def step(rows, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(tf, model, rows, labels)
        gradients = wrap(tape, loss, model)
        assert gradients["unused"] is None
        for name, gradient in gradients.items():
            if isinstance(gradient, tf.IndexedSlices):
                model[name].scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
            elif gradient is not None:
                model[name].assign_sub(0.1 * gradient)

    run = tf.function(step) if graph else step
    for rows, labels in batches(rank, world):
        run(rows, labels)
    return {name: each.numpy().ravel().tolist() for name, each in model.items()}


def everything() -> dict[str, Any]:
    """What two ranks find, in one process each."""
    import tensorflow as tf

    import thinwire
    import thinwire.tensorflow as tw

    group = thinwire.init()
    place = group.rank, group.world
    answers = {"one": trained(tf, lambda tape, loss, model: tape.gradient(loss, model), 0, 1)}
    for graph in (True, False):
        for codec in ("none", "int8", "topk:0.25"):

            def by_tape(tape, loss, model, codec=codec):
                tape = tw.DistributedGradientTape(tape, codec=codec, warmup_steps=0)
                return tape.gradient(loss, model)

            answers[f"tape {codec} {graph}"] = trained(tf, by_tape, *place, graph)
    averages: dict[bool, Any] = {}

    def by_exchange(tape, loss, model):
        average = averages.setdefault(
            True, tw.exchange(model, "none", sparse_as_dense=True, bucket_bytes=64)
        )
        return average(tape.gradient(loss, model))

    answers["dense none"] = trained(tf, by_exchange, *place)
    assert group.world == 1 or len(averages[True].exchange_plan()["assignments"]) > 1
    return answers


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_train_as_one_process(ranks, world):
    first, *others = ranks(world, everything)
    assert all(other == first for other in others)
    one = first.pop("one")
    for name, found in first.items():
        for variable, values in found.items():
            if " none" in name:
                assert values == pytest.approx(one[variable], abs=1e-6), (name, variable)


def averages_of_every_kind() -> dict[str, Any]:
    """Averages of random gradients, several exchanges in a program, and steps that are skipped."""
    import tensorflow as tf

    import thinwire
    import thinwire.tensorflow as tw

    group = thinwire.init()
    draws = np.random.default_rng(7 + group.rank)
    shapes = [(3, 5), (), (0,), (1,), (7, 1, 2), (257,), (2, 0, 3)]
    kinds = [(shape, dtype) for shape in shapes for dtype in (tf.float32, tf.float16, tf.bfloat16)]
    variables = [tf.Variable(tf.zeros(*kind)) for kind in kinds]
    answers: dict[str, Any] = {}

    def gradients() -> list[Any]:
        return [tf.constant(draws.normal(size=shape), dtype) for shape, dtype in kinds]

    def exact(values: list[Any]) -> float:
        """The largest error of averages of the last gradients."""
        errors = []
        for value, average in zip(given, values):
            assert value.dtype == average.dtype and value.shape == average.shape
            wide = np.array(tf.cast(value, tf.float64))
            error = np.abs(tf.cast(average, tf.float64) - group.all_reduce(wide, average=True))
            scale = {tf.float32: 1e-6, tf.float16: 2e-3, tf.bfloat16: 2e-2}[value.dtype]
            errors.append(np.max(error / scale, initial=0.0))
        return float(max(errors))

    average = tw.exchange(variables, "none")
    in_graph = tf.function(average)
    for run in (average, in_graph, average, in_graph):
        given = gradients()
        assert exact(run(given)) < 1
    eager, compiled = (tw.exchange(variables, "int8", seed=2) for _ in range(2))
    for one, other in zip(eager(given), tf.function(compiled)(given)):
        assert tf.reduce_all(one == other)
    # Gradients that are zero on all ranks.
    nothing = tw.exchange(variables, "int8")
    for _ in range(3):
        given = [tf.zeros(*kind) for kind in kinds]
        assert exact(nothing(given)) == 0
    # A gradient that only rank 0 has, and one that is not finite on rank 1 alone.
    here = [given[0], given[3] if group.rank == 0 else None, None]
    some = tw.exchange([variables[0], variables[3], variables[5]], "int8")
    found = some(here)
    assert found[2] is None and found[1] is not None
    before = some.gradients.state()
    spoiled = [np.nan * each if group.rank == 1 else each for each in here[:1]] + here[1:]
    answers["skipped"] = [bool(tf.reduce_all(tf.math.is_nan(each))) for each in some(spoiled)[:2]]
    after = some.gradients.state()
    residuals = [name for name in before[1] if name.startswith("residual")]
    assert residuals and all(before[1][name] == after[1][name] for name in residuals)
    # Two tapes and a persistent one in one function, as in a GAN.
    one, two = tf.Variable([1.0, 2.0]), tf.Variable(3.0)

    @tf.function
    def step(number):
        factor = tf.cast(group.rank + 1, tf.float32) * number
        with tf.GradientTape() as first, tf.GradientTape(persistent=True) as second:
            loss = factor * tf.reduce_sum(one * one) * two
        second = tw.DistributedGradientTape(second, "none")
        of_two = second.gradient(loss, two)
        again = second.gradient(loss, {"a": two, "b": one})
        of_one = tw.DistributedGradientTape(first, "none").gradient(loss, [one])
        return of_two, again["a"], again["b"], of_one[0]

    for number in (1.0, 2.0):
        got = [each.numpy().tolist() for each in step(tf.constant(number))]
        assert got == [
            7.5 * number,
            7.5 * number,
            [9 * number, 18 * number],
            [9 * number, 18 * number],
        ]
    answers["collectives"] = collectives(tf, tw, group)
    answers["resumed"] = resumed(tf, tw, group)
    return answers


def collectives(tf, tw, group) -> list[Any]:
    """Results that must be those of all ranks, in graphs and outside of them."""
    mine = tf.constant([1.0, 2.0]) * (group.rank + 1)
    whole = tf.constant([3, 4]) * (group.rank + 1)
    answers = []
    for wrap in (lambda call: call, tf.function):
        results = [
            wrap(lambda: tw.all_reduce(mine))(),
            wrap(lambda: tw.all_reduce(mine, average=True))(),
            wrap(lambda: tw.all_reduce(mine, "int8:stochastic"))(),
            wrap(lambda: tf.cast(tw.all_reduce(tf.cast(mine, tf.bfloat16)), tf.float32))(),
            wrap(lambda: tw.all_reduce(whole))(),
            wrap(lambda: tw.all_gather(mine[: 1 + group.rank]))(),
            wrap(lambda: tw.all_gather(mine[0]))(),
            wrap(lambda: tw.broadcast(mine, root=1))(),
        ]
        answers.append([each.numpy().tolist() for each in results])
    variable, flag = tf.Variable(mine), tf.Variable(group.rank == 1)
    tw.broadcast_variables([variable, flag], root=1)
    return [*answers, variable.numpy().tolist(), bool(flag.numpy())]


def resumed(tf, tw, group) -> list[bool]:
    """Whether a run that continues from residuals in files gives the bits of one that goes on."""
    import tempfile

    folder = tempfile.mkdtemp()
    given = [
        tf.constant(np.random.default_rng([group.rank, i]).normal(size=(30, 10))) for i in range(4)
    ]
    given = [tf.cast(each, tf.float32) for each in given]
    variable = tf.Variable(tf.zeros((30, 10)), name="weight")
    first = tw.exchange([variable], "topk:0.1", warmup_steps=0)
    for each in given[:2]:
        first([each])
    tw.save_residuals(first, f"{folder}/owed")
    same = []
    second = tw.exchange([variable], "topk:0.1", warmup_steps=0)
    tw.load_residuals(second, f"{folder}/owed")
    fresh = tw.exchange([variable], "topk:0.1", warmup_steps=0)
    for each in given[2:]:
        (going,), (continued,), (new,) = first([each]), second([each]), fresh([each])
        same.append(bool(tf.reduce_all(going == continued)))
    assert not tf.reduce_all(going == new)
    return same


def test_averages_of_every_kind(ranks):
    first, second = ranks(2, averages_of_every_kind)
    assert first == second
    assert first["skipped"] == [True, True] and first["resumed"] == [True, True]
    eager, graph, variable, flag = first["collectives"]
    assert variable == [2.0, 4.0] and flag
    for drawn in (eager.pop(2), graph.pop(2)):  # rounded at random, in each call anew
        assert drawn == pytest.approx([3, 6], abs=0.1)
    assert eager == graph and eager[:2] == [[3.0, 6.0], [1.5, 3.0]]
    assert eager[2:] == [[3.0, 6.0], [9, 12], [1.0, 2.0, 4.0], [1.0, 2.0], [2.0, 4.0]]
