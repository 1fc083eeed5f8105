"""Elastic jobs of Keras: ranks are killed, join and leave while `fit` runs, on each backend."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launch
from test_jax_elastic import TOKEN, lines, until
from test_keras_errors import ENVIRONMENTS
from test_mindspore_elastic import once

pytestmark = pytest.mark.needs("keras")
SAMPLES, BATCH, PASSES = 44, 8, 3
STEPS_OF_A_PASS = 6
STEPS = PASSES * STEPS_OF_A_PASS
RATE = 0.01


def data() -> tuple[Any, Any]:
    """Inputs, whose first column is the number of the sample, and labels."""
    draws = np.random.default_rng(5)
    inputs = draws.normal(size=(SAMPLES, 5)).astype(np.float32)
    inputs[:, 0] = np.arange(SAMPLES) / 256
    return inputs, inputs[:, 1:2] - 0.5 * inputs[:, 2:3] ** 2


def model_of(keras, me: str) -> Any:
    """Two layers, whose values differ between ranks until they join."""
    keras.utils.set_random_seed(1 + int(me))
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((5,)), layers.Dense(9, activation="tanh"), layers.Dense(1)]
    )


def train(folder: str, deaths: dict, options: dict) -> dict[str, Any]:
    """Trains as one process of a job. `deaths` may have a number of steps and a signal for it: after that
    many steps it gets SIGTERM before the next step, or SIGKILL in it or, with `losses`, at the end of
    the pass."""
    import keras

    import thinwire.keras as tk

    me = os.environ["RANK"]
    begins_after = options.get("late", {}).get(me, 1)
    until(lambda: me == "0" or len(lines(folder, "0")) >= begins_after)
    model = model_of(keras, me)
    optimizer: Any = keras.optimizers.AdamW(RATE)
    if options.get("is_scaled"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)
    model.compile(optimizer, "mse")
    elastic = tk.Elastic(model, BATCH, options.get("codec", "none"), compare_every=1)
    worlds = {int(step): world for step, world in options.get("worlds", {}).items()}
    step, deadly = deaths.get(me, (None, None))
    dataset = elastic.dataset(data(), seed=1)
    take, stepped, samples = dataset.take, elastic._stepped, []

    def taking() -> Any:
        """Notes which samples the step computes, or dies in the middle of the step."""
        deal = take()
        if deal is not None:
            samples[:] = dataset.stream.samples_of(deal.batch.number, deal.rows)
            if elastic.steps == step and deadly == signal.SIGKILL:
                os.kill(os.getpid(), deadly)
        return deal

    def noting() -> None:
        """Writes a line about a step that was made."""
        stepped()
        with Path(folder, me).open("a") as file:
            print(json.dumps([elastic.steps, elastic.world, elastic.rank, samples]), file=file)

    dataset.take, elastic._stepped = taking, noting

    class Watching(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            # If more ranks are expected, waits until one asks to join. It joins after this step.
            if elastic.world < worlds.get(elastic.steps, 1):
                until(elastic._members.wants_end)
                worlds[elastic.steps + 1] = worlds[elastic.steps]
            if deadly == signal.SIGTERM and elastic.steps >= step:
                os.kill(os.getpid(), deadly)

    if options.get("fetches_ahead"):
        fetch_ahead()
    losses = options.get("losses", {}).get(me)
    stoppers = stopping(keras, losses, lambda: elastic.steps == step) if losses else []
    if options.get("halves"):
        stoppers.append(keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2))
    raises = [options["raises"]] if "raises" in options else []

    class Raising(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if elastic.steps in raises:
                raises.clear()
                raise RuntimeError("the disk is full")

    def fit() -> Any:
        return model.fit(
            dataset,
            epochs=options.get("epochs", {}).get(me, options.get("passes", PASSES)),
            initial_epoch=elastic.initial_epoch,
            callbacks=[Watching(), Raising(), elastic.callback(), *stoppers],
            verbose=0,
        )

    try:
        history = fit()
    except RuntimeError:
        history = fit()
    place = Path(folder, f"{me}.keras")
    model.save(place)
    loaded = keras.models.load_model(place)
    return {
        "steps": elastic.steps,
        "weights": np.concatenate([np.ravel(each) for each in model.get_weights()]).tolist(),
        "loaded": type(loaded.optimizer).__name__,
        "optimizer": [
            np.ravel(keras.ops.convert_to_numpy(v)).tolist() for v in optimizer.variables
        ],
        "loss": history.history.get("loss", []),
        "iterations": int(keras.ops.convert_to_numpy(model.optimizer.iterations)),
        "learning_rate": float(keras.ops.convert_to_numpy(optimizer.learning_rate)),
    }


def fetch_ahead() -> None:
    """Makes Keras fetch one batch ahead, as it does with JAX on a GPU."""
    from keras.src.backend.jax.trainer import JAXEpochIterator as Iterator

    Iterator._get_iterator = lambda self: self._one_batch_ahead_iterator(
        self.data_adapter.get_jax_iterator()
    )


def stopping(keras, losses: list[float], dies: Any) -> list[Any]:
    """Callbacks that lower the learning rate, stop, and restore the best weights, by these losses; `dies`
    says at the end of a pass whether the process is killed."""

    class Losses(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["told"] = losses[epoch]
            if dies():
                os.kill(os.getpid(), signal.SIGKILL)

    by: dict[str, Any] = {"monitor": "told", "mode": "min"}
    return [
        Losses(),
        keras.callbacks.ReduceLROnPlateau(**by, factor=0.5, patience=1, min_delta=0),
        keras.callbacks.EarlyStopping(**by, patience=1, restore_best_weights=True),
    ]


def run(env: dict[str, str], world: int, deaths: Any = (), **options: Any) -> Any:
    """What each process of a job returned, None where it was killed or has left, and the steps that each
    has made, as number, world, rank and samples."""
    from thinwire._core import Coordinator

    deaths = {str(rank): fate for rank, fate in dict(deaths).items()}
    with tempfile.TemporaryDirectory() as folder:
        coordinator = Coordinator("127.0.0.1:0", TOKEN, state=Path(folder, "state"))
        env = dict(coordinator.seat(), THINWIRE_MEMBER="new", **env)
        outcomes = launch.run(world, train, arguments=[folder, deaths, options], env=env)
        said = [[json.loads(line) for line in lines(folder, str(rank))] for rank in range(world)]
    for outcome in outcomes:
        killed = deaths.get(str(outcome.rank), (None, None))[1] == signal.SIGKILL
        fails = int(str(outcome.rank) in options.get("fails", {}))
        assert outcome.code == (-signal.SIGKILL if killed else fails), launch.report(outcome)
        assert not fails or options["fails"][str(outcome.rank)] in outcome.stderr
        assert "ranks differ" not in outcome.stderr, launch.report(outcome)
    return [outcome.result for outcome in outcomes], said


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_ranks_that_die_leave_and_join_train_as_one_process(env):
    (calm,), (steps,) = run(env, 1)
    # Rank 0 goes on alone when rank 1 is killed, until ranks 2 and 3 come, of which one leaves.
    deaths = {1: (3, signal.SIGKILL), 2: (9, signal.SIGTERM)}
    results, seen = run(env, 4, deaths, worlds={1: 2, 7: 3}, late={"2": 5, "3": 5})
    assert results[1] is None and results[2] is None
    left = [result for result in results if result is not None]
    for result in left:
        assert result["steps"] == calm["steps"] == result["iterations"] == STEPS
        assert result["loaded"] == "AdamW"
        for name in ("weights", "optimizer"):
            assert result[name] == left[0][name]
        assert result["weights"] == pytest.approx(calm["weights"], abs=1e-5)
    once(seen, steps)
    assert len(left[0]["loss"]) == PASSES and left[0]["loss"][-1] < left[0]["loss"][0]
    worlds = [world for _, world, *_ in seen[0]]
    assert worlds[2] == 2 and worlds[4] == 1 and max(worlds) == 3 and worlds[-1] == 2


def test_a_scaled_loss_and_a_codec_go_on_without_a_rank_that_dies():
    # On JAX, `LossScaleOptimizer.stateless_apply` does not call `apply`.
    env = {"KERAS_BACKEND": "jax"}
    options = {"is_scaled": True, "codec": "int8"}
    (calm,), (steps,) = run(env, 1, **options)
    results, seen = run(env, 2, {1: (3, signal.SIGKILL)}, worlds={1: 2}, **options)
    assert results[0]["weights"] == pytest.approx(calm["weights"], abs=0.01)
    assert results[0]["loaded"] == "LossScaleOptimizer" and results[1] is None
    once(seen, steps)


def test_a_rank_that_dies_in_the_last_step_of_a_pass_does_not_end_it():
    env = {"KERAS_BACKEND": "jax"}
    (calm,), (steps,) = run(env, 1)
    deaths = {1: (STEPS_OF_A_PASS - 1, signal.SIGKILL)}
    results, seen = run(env, 2, deaths, worlds={1: 2}, fetches_ahead=True)
    assert results[0]["weights"] == pytest.approx(calm["weights"], abs=1e-5)
    once(seen, steps)


@pytest.mark.parametrize("env", ENVIRONMENTS[:1])
def test_ranks_stop_when_rank_0_stops_and_have_its_learning_rate_and_best_weights(env):
    # By its own losses, rank 1 would stop a pass earlier than rank 0, and rank 2 never. Rank 2 joins
    # after the last step of the first pass. Rank 1 is killed at the end of the third, before the ranks
    # have agreed to stop.
    losses = {"0": [2.0, 1.0, 3.0, 0.0], "1": [1.0, 2.0, 2.0, 0.0], "2": [3.0, 2.0, 1.0, 0.0]}
    options = {"passes": 4, "losses": losses}
    (calm,), _ = run(env, 1, **options)
    assert calm["steps"] == 3 * STEPS_OF_A_PASS and calm["learning_rate"] == pytest.approx(RATE / 2)
    options |= {"worlds": {1: 2, STEPS_OF_A_PASS - 1: 3}, "late": {"2": 3}}
    results, _ = run(env, 3, {1: (calm["steps"], signal.SIGKILL)}, **options)
    assert results[1] is None
    for result in results[0], results[2]:
        for name in ("steps", "learning_rate"):
            assert result[name] == calm[name]
        assert result["weights"] == results[0]["weights"]
        assert result["weights"] == pytest.approx(calm["weights"], abs=1e-5)


def test_a_pass_that_is_continued_keeps_its_learning_rate_and_repeats_no_step():
    env = {"KERAS_BACKEND": "jax"}
    (calm,), (steps,) = run(env, 1, halves=True)
    (interrupted,), _ = run(env, 1, halves=True, raises=STEPS_OF_A_PASS + 2)
    joined, seen = run(env, 2, halves=True, worlds={STEPS_OF_A_PASS + 1: 2}, late={"1": 4})
    once(seen, steps)
    for result in interrupted, *joined:
        for name in ("steps", "iterations", "learning_rate"):
            assert result[name] == calm[name], name
        assert result["weights"] == pytest.approx(calm["weights"], abs=1e-5)


def test_a_rank_with_other_epochs_fails_alone():
    options = {"epochs": {"1": 2}, "fails": {"1": "fit has epochs=2, on rank 0 it has 3, expected"}}
    (first, other), _ = run({"KERAS_BACKEND": "jax"}, 2, worlds={1: 2}, **options)
    assert first["steps"] == STEPS and other is None


def refused() -> dict[str, str]:
    """What is said to trainings that would not be elastic, or would leave out samples."""
    import keras

    import thinwire
    import thinwire.keras as tk

    answers = {}

    def attempt(name: str, call, *given: Any, **named: Any) -> None:
        with pytest.raises(thinwire.InvalidError) as caught:
            call(*given, **named)
        answers[name] = str(caught.value)

    model = model_of(keras, "0")
    attempt("plain", tk.Elastic, model, BATCH)
    model.compile(tk.distributed("sgd", group=thinwire.init()), "mse")
    attempt("twice", tk.Elastic, model, BATCH)
    model.compile("sgd", "mse")
    attempt("batch", tk.Elastic, model, 0)
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    attempt("sum", tk.Elastic, model, BATCH)
    model.compile("sgd", "mse")
    elastic = tk.Elastic(model, BATCH, "none")
    inputs, labels = data()
    attempt("rows", elastic.dataset, (inputs, labels[1:]))
    attempt("leaf", elastic.dataset, (inputs, 3.0))
    attempt("four", elastic.dataset, (inputs,) * 4)
    callbacks, options = [elastic.callback()], {"epochs": 2, "verbose": 0}
    attempt("data", model.fit, inputs, labels, callbacks=callbacks, **options)
    dataset = elastic.dataset((inputs, labels))
    attempt("dataset", elastic.dataset, (inputs, labels))
    # Calls `apply` as a fit without the callback does; on JAX, a fit that fails in a step would leave
    # the model without values.
    variables = model.trainable_variables
    attempt("without", model.optimizer.apply, [each + 0.0 for each in variables], variables)
    attempt("epoch", model.fit, dataset, callbacks=callbacks, initial_epoch=1, **options)
    attempt("steps", model.fit, dataset, callbacks=callbacks, steps_per_epoch=2, **options)
    weights = {0: 1.0, 1: 2.0}
    attempt("ignored", model.fit, dataset, callbacks=callbacks, class_weight=weights, **options)
    backup = [keras.callbacks.BackupAndRestore(tempfile.mkdtemp()), *callbacks]
    attempt("backup", model.fit, dataset, callbacks=backup, **options)
    swaps = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), *callbacks]
    attempt("swaps", model.fit, dataset, callbacks=swaps, **options)
    attempt("shuffle", model.fit, dataset, callbacks=callbacks, shuffle=False, **options)
    attempt("guard", tk.guard(model.optimizer).__enter__)
    averages = [*callbacks, tk.MetricAverage()]
    attempt("callback", model.fit, dataset, callbacks=averages, **options)
    other = model_of(keras, "0")
    other.compile("sgd", "mse")
    attempt("model", other.fit, dataset, callbacks=callbacks, **options)
    model.steps_per_execution = 2
    attempt("several", model.fit, dataset, callbacks=callbacks, **options)
    model.steps_per_execution = 1
    steps = elastic.steps
    epoch = elastic.initial_epoch
    model.fit(dataset, callbacks=callbacks, initial_epoch=epoch, **options)
    assert elastic.steps > steps
    attempt("over", model.fit, dataset, callbacks=callbacks, **options)
    attempt("alone", model.fit, inputs, labels, **options)
    return answers


def test_trainings_that_would_not_be_elastic_are_refused_in_one_line():
    from thinwire._core import Coordinator

    expected = {
        "plain": "is not compiled, expected model.compile(optimizer, loss) before Elastic",
        "twice": "is distributed, expected an optimizer of Keras",
        "batch": "batch is 0, expected",
        "rows": "the data have [43, 44] rows",
        "leaf": "the data contain 3.0, expected arrays",
        "four": "the data are a tuple of 4",
        "data": "fit has the argument y, expected elastic.dataset(...) as its only data",
        "dataset": "the job has a dataset already",
        "epoch": "fit begins with epoch 1, the job is in pass 0",
        "steps": "epoch 0 has ended before all steps of its pass were made",
        "ignored": "fit has the argument class_weight",
        "sum": "reduction='sum', expected 'sum_over_batch_size'",
        "without": "fit has no callback of the job",
        "backup": "fit has the callback BackupAndRestore",
        "swaps": "SwapEMAWeights(swap_on_epoch=True), expected swap_on_epoch=False",
        "shuffle": "fit has shuffle=False, expected it in elastic.dataset",
        "over": "the job is over",
        "alone": "the job is over",
        "callback": "fit has the callback MetricAverage, expected none of",
        "guard": "the optimizer belongs to an elastic job",
        "model": "the model of the job",
        "several": "steps_per_execution is 2, expected 1",
    }
    coordinator = Coordinator("127.0.0.1:0", TOKEN)
    env = dict(coordinator.seat(), THINWIRE_MEMBER="new", KERAS_BACKEND="jax")
    (said,) = launch.results(launch.run(1, refused, env=env))
    assert said.keys() == expected.keys()
    for name, part in expected.items():
        assert part in said[name] and "\n" not in said[name], (name, said[name])
