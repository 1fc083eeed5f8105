"""Two trainings with one GradExchange are one training of both lengths: nothing of its state is lost."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("mindspore")
STEPS = 4
# Codec, momentum correction, whether a saved state is taken up first.
CASES = {
    "int8": ("int8", None, False),
    "topk": ("topk:0.25", None, False),
    "momentum": ("topk:0.25", 0.9, False),
    "resumed": ("int8", None, True),
}


def trained(case: str, epochs: tuple[int, ...], path: str, group) -> dict[str, object]:
    """What is left after trainings of so many epochs each, and what each began and ended with."""
    from mindspore import nn
    from mindspore.train import Model

    import mindspore_models as models
    import thinwire.mindspore

    codec, factor, resumes = CASES[case]
    exchange = thinwire.mindspore.GradExchange(
        codec, group, residuals=path if resumes else None, momentum_correction=factor
    )
    cell = models.network()
    optimizer = nn.SGD(cell.trainable_params(), 0.05) if factor else models.momentum(cell)
    model = Model(cell, models.loss_function(), optimizer)
    ends, begins = [], []

    def began(step: int) -> None:
        if step == 0:
            begins.append(exchange.synchronizer.state())

    for count in epochs:
        data = models.dataset(models.batches(STEPS, group.rank, group.world))
        callbacks = [exchange, models.OnStep(began)]
        model.train(count, data, callbacks=callbacks, dataset_sink_mode=False)
        ends.append(exchange.synchronizer.state())
    kept = [end == begin for end, begin in zip(ends, begins[1:])]
    return {"hash": models.fingerprint(cell), "end": ends[-1], "kept": kept}


def twice(mode: str, folder: str) -> dict[str, list[bool]]:
    """For each case whether the state was kept, and whether weights and state are those of one training."""
    import mindspore_models as models
    import thinwire

    models.use(mode)
    group = thinwire.init()
    path = saved(folder, group)
    answers = {}
    for case in CASES:
        whole = trained(case, (2,), path, group)
        halves = trained(case, (1, 1), path, group)
        same = [whole[name] == halves[name] for name in ("hash", "end")]
        answers[case] = [*halves["kept"], *same]
    return answers


def saved(folder: str, group) -> str:
    """Where residuals of an earlier training are."""
    import mindspore_models as models
    import thinwire.mindspore

    cell = models.network()
    exchange = thinwire.mindspore.GradExchange("int8", group)
    data = models.batches(STEPS, group.rank, group.world)
    models.train_by_model(cell, models.momentum(cell), data, [exchange])
    path = f"{folder}/residuals"
    thinwire.mindspore.save_residuals(exchange, path)
    group.barrier()
    return path


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_two_trainings_are_one_of_both_lengths(ranks, tmp_path, mode):
    for answers in ranks(2, twice, arguments=[mode, str(tmp_path)]):
        assert answers == {case: [True] * 3 for case in CASES}


def planned() -> list[bool]:
    """Whether `auto` continues with its plan, and counts its steps on, in a second training."""
    import json

    from mindspore.train import Model

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("graph")
    group = thinwire.init()
    cell = models.network()
    model = Model(cell, models.loss_function(), models.momentum(cell))
    exchange = thinwire.mindspore.GradExchange("auto", group)
    plans, steps = [], []

    def began(step: int) -> None:
        if step == 0:
            plans.append(exchange.synchronizer.plan())

    for _ in range(2):
        data = models.dataset(models.batches(STEPS, group.rank, group.world))
        callbacks = [exchange, models.OnStep(began)]
        model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
        plans.append(exchange.synchronizer.plan())
        steps.append(json.loads(exchange.synchronizer.record())["step"])
    return [plans[1] == plans[2], steps == [STEPS - 1, 2 * STEPS - 1]]


def test_auto_goes_on_with_its_plan(ranks):
    assert ranks(2, planned) == [[True, True]] * 2


def another_model(folder: str) -> list[bool]:
    """Whether a second model gets the saved residuals of the first."""
    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    models.use("graph")
    group = thinwire.init()
    exchange = thinwire.mindspore.GradExchange("int8", group, residuals=saved(folder, group))
    owed = []

    def began(step: int) -> None:
        if step == 0:
            tensors = exchange.synchronizer.state()[1]
            owed.append(any(any(data) for _, data in tensors.values()))

    for _ in range(2):
        cell = models.network()
        data = models.batches(2, group.rank, group.world)
        callbacks = [exchange, models.OnStep(began)]
        models.train_by_model(cell, models.momentum(cell), data, callbacks)
    return owed


def test_saved_residuals_are_those_of_the_first_model(ranks, tmp_path):
    assert ranks(2, another_model, arguments=[str(tmp_path)]) == [[True, False]] * 2
