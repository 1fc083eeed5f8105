"""When a step cannot be made, every rank hears why, in one line and within seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import pytest

import launch

pytestmark = pytest.mark.needs("mindspore")
# Less than the minute after which a rank gives up by itself.
LIMIT_S = 50.0
FATAL_STEP = 3
MODES = ("graph", "pynative")
WAYS = ("callback", "cell", "loop")


def training(mode: str, way: str, event: str, group) -> dict[str, object]:
    """Trains until something happens on rank 1 in the fatal step, and says what comes of it."""
    import mindspore_models as models

    models.use(mode)
    cell = models.network()
    steps = Steps(models.batches(6, group.rank, group.world), event if group.rank == 1 else "")
    try:
        train(way, cell, steps, group)
    except Exception as error:
        seconds = time.monotonic() - steps.begun
        finite = all(bool((array == array).all()) for array in models.arrays(cell))
        kind, text = type(error).__name__, str(error)
        return {"kind": kind, "text": text, "seconds": seconds, "finite": finite}
    return {"kind": "none"}


class Steps:
    """The batches of a training, and what happens in the fatal step; knows when the last one began."""

    def __init__(self, batches, event: str) -> None:
        self.batches, self.event = list(batches), event
        self.begun = 0.0
        if event == "spoil":
            inputs, labels = self.batches[FATAL_STEP]
            self.batches[FATAL_STEP] = inputs * float("nan"), labels

    def __iter__(self):
        for step, batch in enumerate(self.batches):
            self.begin(step)
            yield batch

    def begin(self, step: int) -> None:
        """Dies as a killed process does, or raises what a user's mistake does, when it is time."""
        self.begun = time.monotonic()
        if step == FATAL_STEP and self.event == "die":
            os._exit(3)
        if step == FATAL_STEP and self.event == "raise":
            raise KeyError("no label 11")


def train(way: str, cell, steps: Steps, group) -> None:
    """Trains in one of the ways, guarded where that is the user's part."""
    import mindspore_models as models
    import thinwire.mindspore

    optimizer = models.momentum(cell)
    if way == "averaging":
        optimizer = thinwire.mindspore.SynchronousAveraging(optimizer, group=group)
        with thinwire.mindspore.guard(optimizer):
            models.train_by_cell(cell, optimizer, steps, None)
        return
    if way == "callback":
        exchange = thinwire.mindspore.GradExchange("none", group)
        callbacks = [exchange, models.OnStep(steps.begin)]
        models.train_by_model(cell, optimizer, steps.batches, callbacks)
        return
    make, run = {
        "cell": (thinwire.mindspore.reducer, models.train_by_cell),
        "loop": (thinwire.mindspore.exchange, models.train_by_loop),
    }[way]
    exchanging = make(optimizer.parameters, "none", group)
    with thinwire.mindspore.guard(exchanging):
        run(cell, optimizer, steps, exchanging)


def one(mode: str, way: str, event: str) -> dict[str, object]:
    """One training."""
    import thinwire

    return training(mode, way, event, thinwire.init())


def every(event: str) -> dict[str, dict[str, object]]:
    """Trainings in all modes and ways, one after the other, with the same group."""
    import thinwire

    group = thinwire.init()
    return {f"{mode} {way}": training(mode, way, event, group) for mode in MODES for way in WAYS}


def test_an_unknown_codec_is_refused_before_anybody_is_met():
    import thinwire
    import thinwire.mindspore

    for make in (
        lambda: thinwire.mindspore.GradExchange("zip"),
        lambda: thinwire.mindspore.exchange([], "zip"),
        lambda: thinwire.mindspore.reducer([], "zip"),
        lambda: thinwire.mindspore.SynchronousSGD(None, "zip"),
    ):
        with pytest.raises(thinwire.InvalidError, match="unknown codec 'zip'"):
            make()


def assert_clear(answer: dict[str, object], kind: str, *words: str) -> None:
    """One line of the right kind, in time, that names things."""
    assert answer is not None
    assert answer["kind"] == kind, answer
    assert "\n" not in answer["text"], answer
    assert all(word in answer["text"] for word in words), answer
    assert answer["seconds"] < LIMIT_S, answer


@pytest.mark.parametrize(
    ("mode", "way"), [("graph", "callback"), ("graph", "averaging"), ("pynative", "cell")]
)
def test_a_lost_rank_ends_the_others(mode, way):
    survivor, lost = launch.run(2, one, arguments=[mode, way, "die"])
    assert lost.code == 3
    assert_clear(survivor.result, "PeerError", "rank 1")


def test_an_exception_of_one_rank_reaches_the_others(ranks):
    waiting, raising = ranks(2, every, arguments=["raise"])
    for case, answer in waiting.items():
        assert "no label 11" in raising[case]["text"]
        assert_clear(answer, "PeerError", "rank 1", "no label 11")


def own_error() -> str:
    """What is raised where rank 1 raises an error of Thinwire."""
    import mindspore as ms

    import thinwire
    import thinwire.mindspore
    from thinwire.mindspore.finite import refuse

    group = thinwire.init()
    parameter = ms.Parameter(ms.ops.zeros(3), name="weight")
    average = thinwire.mindspore.exchange([parameter], "none", group)
    with pytest.raises(thinwire.InvalidError), thinwire.mindspore.guard(average):
        refuse()  # all ranks do, so that the exchange continues
    average((ms.ops.ones(3),))
    with pytest.raises(thinwire.Error) as caught, thinwire.mindspore.guard(average):
        if group.rank == 1:
            raise thinwire.InvalidError("row 40 of table 'items', expected below 40")
        average((ms.ops.ones(3),))
    return f"{type(caught.value).__name__}: {caught.value}"


def test_an_error_of_thinwire_on_one_rank_reaches_the_others(ranks):
    waiting, raising = ranks(2, own_error)
    text = "row 40 of table 'items', expected below 40"
    assert raising == f"InvalidError: {text}"
    assert waiting.startswith("PeerError: rank 1 ") and text in waiting


def test_an_exception_of_one_rank_reaches_those_that_average_with_it(ranks):
    waiting, raising = ranks(2, one, arguments=["graph", "averaging", "raise"])
    assert "no label 11" in raising["text"]
    assert_clear(waiting, "PeerError", "rank 1", "no label 11")


def test_a_nan_on_one_rank_is_refused_by_all(ranks):
    for answers in ranks(2, every, arguments=["spoil"]):
        for answer in answers.values():
            assert_clear(answer, "InvalidError", "not finite")
            assert answer["finite"], "no rank has made the step"


def uneven(mode: str, way: str) -> str:
    """The error of rank 0, which has two batches more than rank 1."""
    import mindspore_models as models
    import thinwire

    models.use(mode)
    group = thinwire.init()
    cell = models.network()
    steps = Steps(models.batches(5 - 2 * group.rank, group.rank, group.world), "")
    try:
        train(way, cell, steps, group)
    except thinwire.PeerError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("mode", "way"), [("graph", "callback"), ("graph", "cell"), ("pynative", "loop")]
)
def test_a_rank_with_fewer_batches_is_named(ranks, mode, way):
    said, nothing = ranks(2, uneven, arguments=[mode, way])
    assert nothing == "nothing"
    assert said.startswith("lost rank 1: it left before this was done")
    assert said.endswith("a rank with fewer batches ends before the others)")


def disagree() -> dict[str, str]:
    """What each way of starting says when rank 1 has another network."""
    import mindspore as ms
    from mindspore import nn

    import mindspore_models as models
    import thinwire
    import thinwire.mindspore

    os.chdir(tempfile.mkdtemp())  # MindSpore writes graphs that it cannot compile into files here
    models.use("graph")
    group = thinwire.init()
    width = 10 + group.rank
    cell = nn.SequentialCell(nn.Dense(64, 8), nn.Dense(8, width))
    optimizer = models.momentum(cell)
    exchange = thinwire.mindspore.GradExchange("none", group)
    starts = {
        "broadcast": lambda: thinwire.mindspore.broadcast_parameters(optimizer.parameters, group),
        "callback": lambda: models.train_by_model(cell, optimizer, models.batches(1), [exchange]),
        "optimizer": lambda: thinwire.mindspore.SynchronousSGD(optimizer, "none", group),
    }
    answers = {}
    for name, start in starts.items():
        with pytest.raises(thinwire.InvalidError) as caught:
            start()
        answers[name] = str(caught.value)
    wrong = (ms.Tensor([1.0]),) * len(optimizer.parameters)
    half = tuple(each.astype(ms.float16) for each in optimizer.parameters)
    average = thinwire.mindspore.exchange(optimizer.parameters[:1], "none", group)
    reducer = thinwire.mindspore.reducer(optimizer.parameters[:1], "none", group)
    for name, call in {"exchange": average, "reducer": reducer}.items():
        for kind, gradients in {"shape": wrong[:1], "dtype": half[:1], "count": wrong[:2]}.items():
            with pytest.raises(thinwire.InvalidError) as caught:
                call(gradients)
            answers[f"{name} {kind}"] = str(caught.value)
    return answers


def test_disagreement_is_said_before_anything_moves(ranks):
    first, second = ranks(2, disagree)
    assert first == second
    for name in ("broadcast", "callback", "optimizer"):
        assert "rank 1 has 1.weight Float32 [11, 8]" in first[name], first[name]
        assert "rank 0 has 1.weight Float32 [10, 8]" in first[name], first[name]
    for name in ("exchange", "reducer"):
        assert "[1]" in first[f"{name} shape"] and "[8, 64]" in first[f"{name} shape"]
        assert "Float16" in first[f"{name} dtype"] and "Float32" in first[f"{name} dtype"]
        assert "2 gradients for 1 parameters" in first[f"{name} count"]
    assert all("\n" not in text for text in first.values())


def test_a_missing_mindspore_is_named_in_one_line():
    hidden = "import sys; sys.modules['mindspore'] = None; import thinwire.mindspore"
    ended = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "pip install mindspore==2.10.0" in last
