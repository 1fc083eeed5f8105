"""State that goes with an elastic job of PyTorch: it belongs to one instant on all ranks, and is what one
rank alone would have."""

import collections
import enum
import io
import os
import signal
import time
from pathlib import Path

import pytest

from test_torch_elastic import Scripted, run

pytestmark = pytest.mark.needs("torch")


class Count:
    """A number that a program counts, and followed."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def members_of(epochs, folder, ends):
    """The membership of this process in the epochs of a script."""
    members = Scripted(int(os.environ["RANK"]), epochs, folder)
    members.ends_at = {int(number): step for number, step in ends.items()}
    return members


def passes(epochs, folder, deaths, ends, options):
    """Trains three passes of five steps, with schedulers that step after each step, after each pass and
    before each. Returns what there is after each pass."""
    import torch

    import thinwire.torch
    from torch_models import digest

    me = os.environ["RANK"]
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    members = members_of(epochs, folder, ends)
    elastic = thinwire.torch.Elastic(model, optimizer, batch=6, codec="none", members=members)
    loader = elastic.loader(torch.randn(26, 4, generator=torch.Generator().manual_seed(1)), seed=1)
    each_pass = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=10)
    each_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    begun = Count()
    elastic.follow(each_pass=each_pass, each_step=each_step, begun=begun)
    rows, tries = [], 0
    for number in loader.passes(3):
        begun.value += 1
        for batch in loader:
            optimizer.zero_grad()
            elastic.model(batch).square().mean().backward()
            if tries == deaths.get(me):
                os.kill(os.getpid(), signal.SIGKILL)
            if [me, tries] == options.get("behind"):
                while not Path(folder, f"applied-{tries}").exists():  # rank 0 has applied this step
                    time.sleep(0.01)
                elastic._averager.abort("lost after the others had all")
                elastic._averager.steps.lost()  # after the others had all
            optimizer.step()
            Path(folder, f"applied-{tries}").touch()
            tries += 1
            each_step.step()
        each_pass.step()
        rate = optimizer.param_groups[0]["lr"]
        rows.append([number, elastic.steps, rate, begun.value, each_step.last_epoch])
    return rows, digest(model)


@pytest.mark.parametrize(
    ("world", "script"),
    [
        (3, {"epochs": [[0, 1], [0, 1, 2]], "ends": {1: 5}}),  # joins between two passes
        (3, {"epochs": [[0, 1], [0, 1, 2]], "ends": {1: 7}}),  # joins in the middle of a pass
        (3, {"epochs": [[0, 1], [0, 2]], "deaths": {1: 5}}),  # joins where a pass has just begun
        (2, {"epochs": [[0, 1], [0, 1]], "behind": ["1", 4]}),  # takes over the last step of a pass
        (2, {"epochs": [[0, 1], [0, 1]], "behind": ["1", 6]}),
        (2, {"epochs": [[0, 1], [0], [0, 1]], "ends": {1: 5, 2: 10}}),  # leaves, and another comes
    ],
)
def test_schedulers_are_where_those_of_one_rank_are_whoever_joins(world, script):
    calm, _ = run(1, [[0]], program=passes)[0]
    left = [result for result in run(world, program=passes, **script) if result is not None]
    assert len(left) == 2 + (world == 3 and "deaths" not in script)
    assert len({digest for _, digest in left}) == 1
    for rows, _ in left:
        assert rows[-1] == calm[-1]
        # A rank that is behind sees schedulers step twice, until the next batch undoes it.
        assert "behind" in script or [row for row in rows if row not in calm] == []


def accumulated(epochs, folder, _deaths, ends, options):
    """Trains with two batches a step, of which some have another size; returns the parameters."""
    import contextlib

    import torch

    import thinwire.torch

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    members = members_of(epochs, folder, ends)
    elastic = thinwire.torch.Elastic(model, optimizer, batch=5, codec="none", members=members)
    loader = elastic.loader(torch.arange(54.0).view(18, 3) / 10, seed=1)
    for _ in loader.passes(3):
        optimizer.zero_grad()
        for number, batch in enumerate(loader):
            later = number % 2 == 0
            alone = elastic.model.no_sync if options["alone"] and later else contextlib.nullcontext
            with alone():
                elastic.model(batch).square().mean().backward()
            if not later:
                optimizer.step()
                optimizer.zero_grad()
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).tolist()


@pytest.mark.parametrize("alone", [True, False])
def test_accumulation_over_unequal_batches_is_that_of_one_rank(alone):
    # Passes of 5, 5, 5 and 3 rows over four ranks: the last batch leaves one of them without a row.
    calm = run(1, [[0]], program=accumulated, alone=alone)[0]
    for parameters in run(4, [[0, 1, 2, 3]], program=accumulated, alone=alone):
        assert parameters == pytest.approx(calm, abs=1e-5)


class Holds:
    """Something with a state of one value, and followed."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Kind(enum.Enum):
    FIRST = 1


Pair = collections.namedtuple("Pair", "first second")


def test_a_state_travels_as_it_is_or_is_refused_in_one_line():
    import numpy as np
    import torch

    from thinwire import InvalidError
    from thinwire.torch.elastic.carried import carried, found

    whole = {
        "numbers": [1, 2.5, 3j, True, None, "text", b"bytes", {4, 5}],
        "numpy": (np.float32(0.1), np.int64(3), np.bool_(True), np.arange(6).reshape(2, 3)),
        "torch": collections.OrderedDict(tensor=torch.ones(2), dtype=torch.float16),
        7: (),
    }
    file = io.BytesIO()
    torch.save(carried(whole, "it"), file)
    file.seek(0)
    loaded = found(torch.load(file, weights_only=True))
    assert repr(loaded) == repr(whole) and type(loaded["numpy"][0]) is np.float32
    others = [Kind.FIRST, Pair(1, 2), Path("/tmp"), print, {Kind.FIRST: 1}, np.array([None])]
    for other in others:
        with pytest.raises(InvalidError, match="the state of it/a/0 is a ") as caught:
            carried({"a": [other]}, "it")
        assert "\n" not in str(caught.value)


def following(epochs, folder, _deaths, ends, options):
    """Follows what NumPy has computed; what is followed becomes a Kind in step `becomes`."""
    import numpy as np
    import torch

    import thinwire.torch

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    members = members_of(epochs, folder, ends)
    elastic = thinwire.torch.Elastic(model, optimizer, batch=6, codec="none", members=members)
    loader = elastic.loader(torch.ones(24, 4))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.exp(-step / 10))
    followed = Holds(np.float32(1.0))
    elastic.follow(scheduler=scheduler, followed=followed)
    with pytest.raises(thinwire.InvalidError, match="the state of path/value is a PosixPath"):
        elastic.follow(path=Holds(Path("/tmp")))
    for _ in loader.passes(3):
        for batch in loader:
            optimizer.zero_grad()
            elastic.model(batch).square().mean().backward()
            optimizer.step()
            scheduler.step()
            followed.value *= np.float32(0.9)
            if elastic.steps == options.get("becomes"):
                followed.value = Kind.FIRST
    file = io.BytesIO()
    torch.save(elastic.state_dict(), file)
    file.seek(0)
    elastic.load_state_dict(torch.load(file, weights_only=True))
    return type(followed.value).__name__, float(followed.value), optimizer.param_groups[0]["lr"]


def test_what_numpy_has_computed_goes_to_joiners_and_into_files():
    results = run(3, [[0, 1], [0, 1, 2]], (), {1: 5}, program=following)
    assert results[0][0] == "float32" and results == [results[0]] * 3


def test_a_state_that_becomes_another_is_refused_in_the_step_that_changes_it(capfd):
    with pytest.raises(AssertionError) as caught:
        run(2, [[0, 1]], program=following, becomes=4)
    assert "InvalidError: the state of followed/value is a Kind, <Kind.FIRST: 1>" in str(
        caught.value
    )


def drifting(epochs, folder, _deaths, ends, options):
    """Trains; rank 1 changes something of its own. Returns what is logged."""
    import logging

    import torch

    import thinwire.torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    members, said = members_of(epochs, folder, ends), []
    logging.getLogger("thinwire").addFilter(lambda record: said.append(record.getMessage()))
    elastic = thinwire.torch.Elastic(
        model, optimizer, batch=6, codec="none", members=members, compare_every=4
    )
    loader = elastic.loader(torch.ones(60, 4))
    followed = Holds(1)
    elastic.follow(followed=followed)
    for _ in loader.passes(2):
        for batch in loader:
            optimizer.zero_grad()
            elastic.model(batch).square().mean().backward()
            optimizer.step()
            if elastic.rank == 1 and elastic.steps == 6:
                options.get("changes") == "rate" and optimizer.param_groups[0].update(lr=0.2)
                options.get("changes") == "value" and setattr(followed, "value", 2)
                if options.get("changes") == "weight":
                    with torch.no_grad():
                        model.weight[0, 1] += 1e-6
    return [line for line in said if line.startswith("ranks differ")]


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        ("nothing", None),
        ("rate", "optimizer/param_groups/0/lr: rank 1 has 0.2, rank 0 has 0.1"),
        ("value", "followed/value: rank 1 has 2, rank 0 has 1 "),
        ("weight", "model/weight: rank 1 has "),
    ],
)
def test_ranks_say_which_entry_differs(changes, entry):
    first, second = run(2, [[0, 1]], program=drifting, changes=changes)
    assert second == []
    if entry is None:
        assert first == []
    else:
        assert "ranks differ after step 8 in " in first[0] and f"{entry}" in " ".join(first)


def test_a_job_may_be_coordinated_by_etcd(monkeypatch):
    """DDP's own group of one rank has nothing to do with the address of the job."""
    from thinwire.torch.elastic.single import Single

    monkeypatch.setenv("THINWIRE_COORDINATOR", "etcd://127.0.0.1:2379/job")
    assert Single(lambda used: None).size() == 1
