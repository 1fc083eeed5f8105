"""Elastic jobs of MindSpore: ranks are killed, join and leave while `Model.train` runs."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.needs("mindspore")
BATCH, PASSES = 12, 2
PAUSE_S = 0.05
TOKEN = "0123456789abcdef"


class Numbered:
    """Samples of ten classes; the first value of each is its number."""

    def __init__(self, size):
        import numpy as np

        from mindspore_models import WIDTHS

        generator = np.random.default_rng(5)
        self.inputs = generator.standard_normal((size, WIDTHS[0])).astype(np.float32)
        self.labels = self.inputs[:, 1:11].argmax(1).astype(np.int32)
        self.inputs[:, 0] = np.arange(size) / 256

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index]


def watching(elastic, fate, file, options):
    """A callback that writes the samples of each step that was made to a file, a line for each.

    It calls `fate` with the number of each try. Tries count from the first with as many ranks as expected.
    Steps take long until then, and while ranks that come late have begun and not yet written a file.
    """
    expected, after = options.get("expected", 1), options.get("after", 1)
    late = [file.parent / each for each in options.get("late", [])]
    from mindspore.train import Callback

    class Watching(Callback):
        def __init__(self):
            super().__init__()
            self.tries = -1

        def on_train_step_begin(self, run_context):
            self.steps = elastic.steps
            if self.tries >= 0 or elastic.world >= expected:
                self.tries += 1
                fate(self.tries)
            waits = elastic.steps >= after and not all(each.exists() for each in late)
            time.sleep(20 * PAUSE_S if self.tries < 0 or waits else PAUSE_S)

        def on_train_step_end(self, run_context):
            told = run_context.original_args()
            ids = (told.train_dataset_element[0].asnumpy()[:, 0] * 256).round().astype(int)
            if elastic.steps > self.steps:
                assert told.cur_step_num == elastic.steps
                seen = [elastic.steps, elastic.world, elastic.rank, ids.tolist()]
                with file.open("a") as lines:
                    print(json.dumps(seen), file=lines)

    return Watching()


def changing(optimizer):
    """A callback that changes the learning rate around steps and passes."""
    import mindspore as ms
    import numpy as np
    from mindspore import ops
    from mindspore.train import Callback

    def scale(factor):
        rate = optimizer.learning_rate
        ops.assign(rate, ms.Tensor(rate.asnumpy() * np.float32(factor)))

    class Changing(Callback):
        def on_train_epoch_begin(self, _run_context):
            scale(2.0)

        def on_train_epoch_end(self, _run_context):
            scale(0.25)

        def on_train_step_end(self, _run_context):
            scale(0.96875)

    return Changing()


def counting(cell):
    """The network with a parameter that each forward pass moves, as running statistics."""
    import mindspore as ms
    from mindspore import nn, ops

    class Counting(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.cell = cell
            self.count = ms.Parameter(ms.Tensor(0.0, ms.float32), "count", requires_grad=False)

        def construct(self, inputs):
            outputs = self.cell(inputs)
            return ops.depend(outputs, ops.assign_add(self.count, ops.ones_like(self.count)))

    return Counting()


def train(mode, folder, deaths, options):
    """Trains as one process, which gets a signal in the tries of steps that `deaths` names for it."""
    import mindspore as ms
    from mindspore.train import Model

    import mindspore_models as models
    import thinwire.mindspore
    from thinwire._core import PeerError

    me = os.environ["RANK"]
    models.use(mode)
    late = options.get("late", [])
    first = Path(folder, "0")
    while me in late and (
        not first.exists() or len(first.read_text().splitlines()) < options.get("after", 1)
    ):
        time.sleep(0.01)
    cell = models.network()  # whoever comes first begins
    loss = models.loss_function()
    if mode == "graph":  # else each number of rows is compiled
        cell.set_inputs(ms.Tensor(shape=[None, models.WIDTHS[0]], dtype=ms.float32))
        logits = ms.Tensor(shape=[None, models.WIDTHS[-1]], dtype=ms.float32)
        loss.set_inputs(logits, ms.Tensor(shape=[None], dtype=ms.int32))
    cell = counting(cell) if options.get("counts") else cell
    optimizer = models.momentum(cell)
    codec = options.get("codec", "none")
    ms.manual_seed(int(me))  # all continue from the random numbers of rank 0
    elastic = thinwire.mindspore.Elastic(cell, optimizer, batch=BATCH, codec=codec)
    source = Numbered(options.get("samples", 96))
    data = elastic.dataset(source, seed=1, workers=options.get("workers", 0))

    def fate(tries):
        if tries == deaths.get(me):
            os.kill(os.getpid(), options.get("deadly", signal.SIGKILL))
        if [me, tries] == options.get("behind"):
            elastic._averager._finish = lose

    def lose():
        finish = type(elastic._averager)._finish
        finish(elastic._averager)
        del elastic._averager._finish
        other = Path(folder, "0")  # must have the averages before this rank breaks their connection
        deadline = time.monotonic() + 60
        while not other.exists() or len(other.read_text().splitlines()) <= elastic.steps:
            assert time.monotonic() < deadline, f"rank 0 makes no step {elastic.steps + 1}"
            time.sleep(0.01)
        raise PeerError("lost after the others had all")

    file = Path(folder, me)
    watcher = watching(elastic, fate, file, options)
    model = Model(cell, loss, elastic.optimizer)
    callbacks = [elastic.callback(), watcher] + [changing(optimizer)] * options.get("changes", 0)
    model.train(PASSES, data, callbacks=callbacks, dataset_sink_mode=False)
    with pytest.raises(thinwire.InvalidError, match="the job is over"):
        model.train(PASSES, data, callbacks=[elastic.callback()], dataset_sink_mode=False)
    return {
        "digest": models.fingerprint(cell),
        "moments": models.fingerprint(optimizer),
        "parameters": [value for array in models.arrays(cell) for value in array.ravel().tolist()],
        "counted": [float(each.asnumpy()) for each in cell.untrainable_params()],
        "steps": [elastic.steps, int(optimizer.global_step.asnumpy()[0])],
        "rate": float(optimizer.learning_rate.asnumpy()),
        "random": ms.get_rng_state().asnumpy().tolist(),
    }


def run(world, mode, deaths=(), **options):
    """What each process of a job returned, None where it was killed or has left, and the steps that each
    has made: their number, the world, the rank and its samples."""
    from thinwire._core import Coordinator

    deaths = {str(rank): tries for rank, tries in dict(deaths).items()}
    with tempfile.TemporaryDirectory() as folder:
        least = options.get("least", 1)
        state = Path(folder, "state")
        coordinator = Coordinator("127.0.0.1:0", TOKEN, min_ranks=least, state=state)
        env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
        arguments = [mode, folder, deaths, options]
        outcomes = launch.run(world, train, arguments=arguments, env=env)
        lines = [Path(folder, str(rank)).read_text().splitlines() for rank in range(world)]
    for outcome in outcomes:
        dies = str(outcome.rank) in deaths and options.get("deadly") is None
        assert outcome.code == (-signal.SIGKILL if dies else 0), launch.report(outcome)
    return [outcome.result for outcome in outcomes], [[*map(json.loads, each)] for each in lines]


def check(results, calm, tolerance=1e-5):
    """Ranks that are left are alike, and what one rank alone would be."""
    left = [result for result in results if result is not None]
    for name in ("digest", "moments", "steps", "random"):
        assert all(result[name] == left[0][name] for result in left), name
    assert left[0]["steps"] == calm["steps"]
    difference = max(abs(a - b) for a, b in zip(left[0]["parameters"], calm["parameters"]))
    assert difference <= tolerance


def once(seen, calm):
    """Every step has had the samples that it has for one rank, each of them once."""
    parts = {step: {} for step, *_ in calm}
    for step, world, rank, ids in sum(seen, []):
        assert rank not in parts[step]
        parts[step][rank] = world, ids
    for step, _, _, whole in calm:
        worlds = {world for world, _ in parts[step].values()}
        assert worlds == {len(parts[step])}
        assert [each for rank in sorted(parts[step]) for each in parts[step][rank][1]] == whole


@pytest.fixture(scope="module")
def calm():
    found = {}

    def of(samples=96, changes=0):
        if (samples, changes) not in found:
            (result,), (seen,) = run(1, "pynative", samples=samples, changes=changes)
            found[samples, changes] = result, seen
        return found[samples, changes]

    return of


def test_one_rank_sees_every_sample_once_in_a_pass(calm):
    result, seen = calm()
    assert result["steps"] == [16, 16]
    ids = [sample for *_, computed in seen for sample in computed]
    assert sorted(ids[:96]) == sorted(ids[96:]) == list(range(96))
    assert ids[:96] != ids[96:]


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_survivors_of_a_kill_do_the_step_again(calm, mode):
    options = {"samples": 91, "expected": 3, "workers": 2 * (mode == "graph")}
    results, seen = run(3, mode, {1: 3}, **options)
    result, steps = calm(91)
    check(results, result)
    once(seen, steps)
    assert results[1] is None and [world for _, world, *_ in seen[0]][-1] == 2


def test_ranks_join_a_job_under_way_and_leave_it_at_sigterm(calm):
    options = {"expected": 2, "deadly": signal.SIGTERM, "late": ["2"]}
    results, seen = run(3, "pynative", {1: 8}, **options)
    result, steps = calm()
    check(results, result)
    once(seen, steps)
    assert results[1] is None and seen[2][0][0] > 1


def test_a_rank_takes_over_a_step_that_it_has_lost_and_another_has_applied(calm):
    # Rank 1 hears of a loss when all averages are there, rank 0 does not.
    results, seen = run(2, "graph", behind=["1", 3], expected=2)
    result, _ = calm()
    check(results, result)
    assert len(seen[0]) == len({step for step, *_ in sum(seen, [])}) == 16
    assert len(seen[1]) < len(seen[0])


def test_running_statistics_are_put_back_after_a_void_step():
    (calm,), _ = run(1, "pynative", counts=True)
    results, _ = run(3, "pynative", {1: 3}, counts=True, expected=3)
    for result in (results[0], results[2]):
        assert result["counted"] == calm["counted"] and result["counted"][0] >= 16


@pytest.mark.parametrize("leaves_at", [7, 9, 11])  # of 16 steps, 8 in a pass
def test_a_rate_that_callbacks_change_is_that_of_one_rank_whoever_joins(calm, leaves_at):
    # One of two ranks leaves, and the other waits for a third, as two have to be there.
    calm, _ = calm(changes=1)
    options = {"deadly": signal.SIGTERM, "least": 2, "late": ["2"], "after": leaves_at + 1}
    results, _ = run(3, "pynative", {1: leaves_at}, expected=2, changes=1, **options)
    check(results, calm)
    assert [result and result["rate"] for result in results] == [calm["rate"], None, calm["rate"]]


def test_a_void_step_leaves_no_trace_in_a_rate(calm):
    calm, _ = calm(changes=1)
    results, _ = run(3, "pynative", {1: 5}, changes=1, expected=3)
    check(results, calm)
    assert {result["rate"] for result in results if result} == {calm["rate"]}


@pytest.mark.parametrize("codec", ["int8", "powersgd:2", "auto"])
def test_codecs_go_on_with_joiners_and_without_the_lost(codec):
    results, _ = run(3, "pynative", {1: 4}, codec=codec, expected=2, late=["2"])
    left = [result for result in results if result is not None]
    assert left[0]["digest"] == left[1]["digest"] and left[0]["steps"] == [16, 16]


def drifting():
    """Trains as one of two ranks, of which rank 1 changes its learning rate; returns what is logged."""
    import logging

    import mindspore as ms
    from mindspore import ops
    from mindspore.train import Callback, Model

    import mindspore_models as models
    import thinwire.mindspore

    models.use("pynative")
    cell, said = models.network(), []
    optimizer = models.momentum(cell)
    logging.getLogger("thinwire").addFilter(lambda record: said.append(record.getMessage()))
    elastic = thinwire.mindspore.Elastic(
        cell, optimizer, batch=BATCH, codec="none", compare_every=2
    )

    class Drifting(Callback):
        def on_train_step_end(self, _run_context):
            if elastic.rank == 1 and elastic.steps == 3:
                ops.assign(optimizer.learning_rate, ms.Tensor(0.5, ms.float32))

    model = Model(cell, models.loss_function(), elastic.optimizer)
    callbacks = [elastic.callback(), Drifting()]
    model.train(1, elastic.dataset(Numbered(96)), callbacks, dataset_sink_mode=False)
    return [line for line in said if line.startswith("ranks differ")]


def test_ranks_say_which_entry_differs():
    from thinwire._core import Coordinator

    coordinator = Coordinator("127.0.0.1:0", TOKEN, min_ranks=2)
    env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
    said = launch.results(launch.run(2, drifting, env=env))
    assert [] in said
    (first, *_) = said[0] or said[1]
    assert first.startswith("ranks differ after step 4 in ") and "rank 1 has " in first


def refused():
    """What is said to trainings that would not be elastic."""
    import mindspore as ms
    from mindspore.train import Model

    import mindspore_models as models
    import thinwire.mindspore

    models.use("pynative")
    cell = models.network()
    optimizer = models.momentum(cell)
    elastic = thinwire.mindspore.Elastic(cell, optimizer, batch=BATCH)
    loss = models.loss_function()

    def data():
        return elastic.dataset(Numbered(24))

    callbacks = [elastic.callback()]
    other = models.dataset(models.batches(2))

    def under(**variables):
        os.environ.update(variables)
        thinwire.mindspore.Elastic(cell, optimizer, batch=BATCH)

    attempts = {
        "optimizer": lambda: Model(cell, loss, optimizer).train(1, data(), callbacks),
        "data": lambda: Model(cell, loss, elastic.optimizer).train(1, other, callbacks),
        "callback": lambda: Model(cell, loss, elastic.optimizer).train(1, data()),
        "source": lambda: elastic.dataset(iter([1])),
        "msrun": lambda: under(MS_ROLE="MS_WORKER", MS_WORKER_NUM="3"),
        "torchrun": lambda: under(TORCHELASTIC_RUN_ID="1", WORLD_SIZE="2"),
    }
    said = {}
    for name, attempt in attempts.items():
        with pytest.raises(thinwire.InvalidError) as caught:
            attempt()
        said[name] = str(caught.value)
    assert ms.get_context("device_target") == "CPU"
    return said


def test_trainings_that_would_not_be_elastic_are_refused_in_one_line():
    from thinwire._core import Coordinator

    coordinator = Coordinator("127.0.0.1:0", TOKEN)
    env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
    (said,) = launch.results(launch.run(1, refused, env=env))
    assert said["optimizer"] == "the model was not made with elastic.optimizer"
    assert said["data"].startswith("the training has a GeneratorDataset as its data")
    assert said["callback"] == "the training has no elastic.callback() among its callbacks"
    assert "has no samples that can be read by number" in said["source"]
    assert said["msrun"].startswith("msrun ends all its 3 ranks when one dies")
    assert said["torchrun"].startswith("torchrun ends all its 2 ranks when one dies")
