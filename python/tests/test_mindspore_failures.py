"""When a step cannot be made, every rank hears why, in one line and within seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import launch
import pytest

pytestmark = pytest.mark.needs("mindspore")
LIMIT_S = 5.0
FATAL_STEP = 3
MODES = ("graph", "pynative")
WAYS = ("callback", "cell", "loop")


class Breaking:
    """Batches of this rank, among which rank 1 does something fatal; knows when the last one began."""

    def __init__(self, group, fatal) -> None:
        self.group, self.fatal = group, fatal
        self.begun = 0.0

    def __iter__(self):
        import mindspore_models as models

        for step, batch in enumerate(models.batches(6, self.group.rank, self.group.world)):
            self.begun = time.monotonic()
            if step == FATAL_STEP and self.group.rank == 1:
                batch = self.fatal(batch)
            yield batch


def die(batch):
    """What a killed process does."""
    os._exit(3)


def refuse(batch):
    """What a user's mistake in one rank's data does."""
    raise KeyError("no label 11")


def spoil(batch):
    """What a diverging loss does."""
    inputs, labels = batch
    return inputs * float("nan"), labels


def train(mode: str, way: str, fatal: str) -> dict[str, object]:
    """Trains until something happens, and says what."""
    import mindspore_models as models

    import thinwire
    import thinwire.mindspore

    models.use(mode)
    group = thinwire.init()
    cell = models.network()
    optimizer = models.momentum(cell)
    data = Breaking(group, globals()[fatal])
    before = None
    try:
        run(way, cell, optimizer, data, group)
    except Exception as error:
        after = models.arrays(cell)
        finite = all(bool((array == array).all()) for array in after)
        return report(error, time.monotonic() - data.begun) | {"finite": finite}
    return {"kind": "none", "before": before}


def run(way: str, cell, optimizer, data, group) -> None:
    """Trains in one of the ways, guarded where that is the user's part."""
    import mindspore_models as models

    import thinwire.mindspore

    if way == "callback":
        exchange = thinwire.mindspore.GradExchange("none", group)
        models.train_by_model(cell, optimizer, data, [exchange])
    elif way == "cell":
        reducer = thinwire.mindspore.reducer(optimizer.parameters, "none", group)
        with thinwire.mindspore.guard(reducer):
            models.train_by_cell(cell, optimizer, data, reducer)
    else:
        average = thinwire.mindspore.exchange(optimizer.parameters, "none", group)
        with thinwire.mindspore.guard(average):
            models.train_by_loop(cell, optimizer, data, average)


def report(error: Exception, seconds: float) -> dict[str, object]:
    """An exception as JSON."""
    return {"kind": type(error).__name__, "text": str(error), "seconds": seconds}


def assert_clear(answer: dict[str, object], kind: str, *words: str) -> None:
    """One line of the right kind, in time, that names things."""
    assert answer is not None
    assert answer["kind"] == kind, answer
    assert "\n" not in answer["text"], answer
    assert all(word in answer["text"] for word in words), answer
    assert answer["seconds"] < LIMIT_S, answer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_lost_rank_ends_the_others(mode, way):
    survivor, lost = launch.run(2, train, arguments=[mode, way, "die"], timeout=60)
    assert lost.code == 3
    assert_clear(survivor.result, "PeerError", "rank 1")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_an_exception_of_one_rank_reaches_the_others(mode, way):
    waiting, raising = launch.run(2, train, arguments=[mode, way, "refuse"], timeout=60)
    assert "no label 11" in raising.result["text"]
    assert_clear(waiting.result, "PeerError", "rank 1", "no label 11")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_nan_on_one_rank_is_refused_by_all(ranks, mode, way):
    for answer in ranks(2, train, arguments=[mode, way, "spoil"]):
        assert_clear(answer, "InvalidError", "not finite")
        assert answer["finite"], "no rank has made the step"
