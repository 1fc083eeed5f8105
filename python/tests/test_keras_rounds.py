"""Rounds in the modes of the core under `fit`, on each backend of Keras."""

from __future__ import annotations

from typing import Any

import pytest

from test_keras_errors import ENVIRONMENTS
from test_keras_laws import fit, model_of, weights_of

pytestmark = pytest.mark.needs("keras")
MODES = {"local:1": "none", "pair:2": None, "diloco:3,fragments=2,delay=1": "int4"}


def everything() -> dict[str, Any]:
    """The weights of one process, those of ranks in each mode, and of a training that was resumed."""
    import keras

    import thinwire
    import thinwire.keras as tk

    group = thinwire.init()
    place = group.rank, group.world
    answers: dict[str, Any] = {"modes": {}}
    if group.rank == 0:
        model = model_of(keras)
        fit(model, keras.optimizers.SGD(0.05), -1, group.world)
        answers["one"] = weights_of(model)
    for mode, codec in MODES.items():
        model = model_of(keras)
        if group.rank == 1:
            model.layers[-1].bias.assign([7.0])  # all begin with rank 0's
        rounds = tk.Rounds(model, mode, codec)
        fit(model, keras.optimizers.SGD(0.05), *place, callbacks=[rounds])
        answers["modes"][mode] = weights_of(model)
    state = rounds.state()
    again = model_of(keras)
    resumed = tk.Rounds(again, mode, codec)
    resumed.load(state)
    for these, trained in ((rounds, model), (resumed, again)):
        fit(trained, keras.optimizers.SGD(0.05), *place, callbacks=[these])
    answers["resumed"] = weights_of(model), weights_of(again)
    with pytest.raises(thinwire.InvalidError, match="no variables yet"):
        tk.Rounds(keras.Sequential([keras.layers.Dense(1)]), mode)
    late = tk.Rounds(again, mode, codec)
    again.set_weights(model_of(keras).get_weights())
    with pytest.raises(
        thinwire.InvalidError, match="has changed between the common start of ranks"
    ):
        fit(again, keras.optimizers.SGD(0.05), *place, callbacks=[late])
    return answers


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_ranks_end_alike_and_the_average_of_parameters_is_that_of_gradients(ranks, env):
    first, second = ranks(2, everything, env=env)
    assert first["modes"] == second["modes"]
    assert first["modes"]["local:1"] == pytest.approx(first["one"], abs=1e-6)
    assert first["resumed"] == second["resumed"]
    assert first["resumed"][0] == first["resumed"][1]
