"""amp.DynamicLossScaler with the exchange: a step that overflows on one rank is skipped by all."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("mindspore")
STEPS, BAD_STEP = 5, 2
SCALE = 1024.0


def by_loop(cell, optimizer, data, scaler, average) -> None:
    """A loop in Python: gradients are unscaled, then exchanged."""
    import mindspore as ms
    from mindspore import amp

    import mindspore_models as models

    gradient = ms.value_and_grad(scaled(cell, models, scaler), None, optimizer.parameters)
    for inputs, labels in data:
        _, gradients = gradient(ms.Tensor(inputs), ms.Tensor(labels))
        gradients = average(scaler.unscale(gradients))
        finite = amp.all_finite(gradients)
        if finite:
            optimizer(gradients)
        scaler.adjust(finite)


def by_jit(cell, optimizer, data, scaler, reducer) -> None:
    """The exchange in one compiled function."""
    import mindspore as ms
    from mindspore import amp, ops

    import mindspore_models as models

    gradient = ms.value_and_grad(scaled(cell, models, scaler), None, optimizer.parameters)

    @ms.jit
    def step(inputs, labels):
        value, gradients = gradient(inputs, labels)
        gradients = reducer(scaler.unscale(gradients))
        finite = amp.all_finite(gradients)
        if finite:
            value = ops.depend(value, optimizer(gradients))
        return ops.depend(value, scaler.adjust(finite))

    for inputs, labels in data:
        step(ms.Tensor(inputs), ms.Tensor(labels))


def scaled(cell, models, scaler):
    """The loss that overflows instead of vanishing."""
    loss = models.loss_function()

    def forward(inputs, labels):
        return scaler.scale(loss(cell(inputs), labels))

    return forward


def skipping() -> dict[str, tuple[str, float]]:
    """Weights and scale after each way, where rank 1 overflows in one step; and without that step."""
    from mindspore import amp

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    group = thinwire.init()
    data = list(models.batches(STEPS, group.rank, group.world))
    bad = list(data)
    if group.rank == 1:
        bad[BAD_STEP] = data[BAD_STEP][0] * float("inf"), data[BAD_STEP][1]
    answers = {}
    for mode in models.MODES:
        models.use(mode)
        for train, make in [
            (by_loop, thinwire.mindspore.exchange),
            (by_jit, thinwire.mindspore.reducer),
        ]:
            cell = models.network()
            optimizer = models.momentum(cell)
            scaler = amp.DynamicLossScaler(SCALE, 2, 1000)
            average = make(optimizer.parameters, "int8", group, non_finite="nan")
            train(cell, optimizer, bad, scaler, average)
            scale = float(scaler.scale_value.asnumpy())
            answers[f"{mode} {train.__name__}"] = models.fingerprint(cell), scale
        cell = models.network()
        optimizer = models.momentum(cell)
        average = thinwire.mindspore.exchange(optimizer.parameters, "int8", group)
        models.train_by_loop(cell, optimizer, data[:BAD_STEP] + data[BAD_STEP + 1 :], average)
        answers[f"{mode} without"] = models.fingerprint(cell), SCALE / 2
    return answers


def test_a_step_that_overflows_on_one_rank_is_skipped_by_all(ranks):
    first, second = ranks(2, skipping)
    assert first == second
    for name, found in first.items():
        mode = name.partition(" ")[0]
        assert found == first[f"{mode} without"], name
