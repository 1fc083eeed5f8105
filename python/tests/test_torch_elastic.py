"""Elastic jobs of PyTorch over epochs that are written down: who is in each, and who dies when."""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.needs("torch")

SAMPLES, BATCH = 123, 12
TOKEN = "0123456789abcdef"


class Scripted:
    """Membership that follows a list of epochs: who is in each, and where they meet. As a coordinator does,
    members with the newest state come first; they tell each other in files."""

    def __init__(self, me, epochs, folder):
        self.me, self.epochs, self.number = me, epochs, 0
        self.folder, self.steps, self.groups = Path(folder), -1, []
        self.ends_at = {}

    def next(self):
        from thinwire._core import Epoch, Group

        while True:
            self.number += 1
            if self.number > len(self.epochs):
                return None
            members, address = self.epochs[self.number - 1]
            if self.me in members:
                break
        members, holders = self.arranged(members)
        rank, world = members.index(self.me), len(members)
        place = (rank, world, address, TOKEN) if world > 1 else (0, 1)
        self.groups.append(Group.join(*place, launched=world > 1, timeout_s=30.0))
        return Epoch.of(self.groups[-1], self.number, holders)

    def arranged(self, members):
        """The members in order, and how many of them have the newest state."""
        said = {}
        mine = self.folder / f"{self.number}-{self.me}"
        mine.with_suffix(".new").write_text(str(self.steps))
        mine.with_suffix(".new").rename(mine)
        while len(said) < len(members):
            for each in members:
                with contextlib.suppress(FileNotFoundError):
                    said[each] = int(self.folder.joinpath(f"{self.number}-{each}").read_text())
            time.sleep(0.005)
        newest = max(said.values())
        holders = sum(steps == newest for steps in said.values()) if newest >= 0 else 0
        return sorted(members, key=lambda each: -said[each]), holders

    def wants_end(self):
        return self.steps + 1 == self.ends_at.get(self.number)

    def applied(self, steps):
        self.steps = steps

    synced = applied

    def halted(self):
        pass

    leave = complete = halted


def problem():
    """Data of three classes, with each sample's number in it."""
    import torch

    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 16, generator=generator)
    labels = inputs[:, :10].argmax(1)
    return torch.utils.data.TensorDataset(torch.arange(SAMPLES), inputs, labels)


def train(epochs, folder, deaths, ends, options):
    """Trains as one process, which dies in the tries of steps that `deaths` names for it."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from thinwire.torch.elastic.job import Elastic
    from torch_models import digest

    me = int(os.environ["RANK"])
    torch.set_num_threads(1)
    members = None
    if epochs:
        torch.manual_seed(me)  # joiners take over what they find
        members = Scripted(me, epochs, folder)
        members.ends_at = {int(number): step for number, step in ends.items()}
    else:
        torch.manual_seed(0)  # whoever comes first begins
    time.sleep(options.pop("delays", {}).get(str(me), 0))
    passes, workers = options.pop("passes", 2), options.pop("workers", 0)
    amp, accumulate = options.pop("amp", False), options.pop("accumulate", 1)
    deadly, pause = options.pop("deadly", signal.SIGKILL), options.pop("pause", 0)
    drop_last = options.pop("drop_last", False)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 10))
    if not options.pop("norm", False):
        model[1] = nn.Identity()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    elastic = Elastic(model, optimizer, batch=BATCH, members=members, **options)
    loader = elastic.loader(problem(), num_workers=workers, seed=1, drop_last=drop_last)
    scaler = torch.amp.GradScaler("cpu", enabled=amp, growth_interval=4)
    elastic.follow(scheduler=scheduler, scaler=scaler)
    seen, tries = [], 0
    for _ in loader.passes(passes):
        for number, (ids, inputs, labels) in enumerate(loader):
            if (number % accumulate) == 0:
                optimizer.zero_grad()
                computed = []
            computed += ids.tolist()
            loss = cross_entropy(elastic.model(inputs), labels) / accumulate
            if (number + 1) % accumulate:
                with elastic.model.no_sync():
                    scaler.scale(loss).backward()
                continue
            if tries == deaths.get(str(me)):
                os.kill(os.getpid(), deadly)
            tries += 1
            time.sleep(pause)
            scaler.scale(loss).backward()
            steps = elastic.steps
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if elastic.steps > steps:
                seen.append((elastic.steps, elastic.world, elastic.rank, computed))
    return {
        "digest": digest(model),
        "parameters": torch.cat(
            [each.detach().reshape(-1) for each in model.parameters()]
        ).tolist(),
        "buffers": [each.tolist() for each in model.buffers()],
        "seen": seen,
        "steps": elastic.steps,
        "rate": optimizer.param_groups[0]["lr"],
        "scale": scaler.state_dict(),
    }


def run(world, epochs, deaths=(), ends=(), **options):
    """What each process returned; None where it was killed."""
    import thinwire

    stores = [thinwire.Store("127.0.0.1", 0, TOKEN) for _ in epochs]
    epochs = [(epoch, store.address) for epoch, store in zip(epochs, stores)]
    script = [{str(key): at for key, at in dict(each).items()} for each in (deaths, ends)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = [epochs, folder, *script, options]
        outcomes = launch.run(world, train, arguments=arguments, timeout=100)
    for outcome in outcomes:
        assert outcome.code == (-signal.SIGKILL if outcome.rank in dict(deaths) else 0), (
            launch.report(outcome)
        )
    return [outcome.result for outcome in outcomes]


def run_together(world, deaths=(), **options):
    """What each process of a job with a coordinator returned; None where it was killed or has left."""
    from thinwire._core import Coordinator

    with tempfile.TemporaryDirectory() as folder:
        coordinator = Coordinator("127.0.0.1:0", TOKEN, state=Path(folder, "state"))
        arguments = [None, folder, {str(me): at for me, at in dict(deaths).items()}, {}, options]
        env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
        outcomes = launch.run(world, train, arguments=arguments, env=env, timeout=100)
    for outcome in outcomes:
        ended = -options.get("deadly", signal.SIGKILL) if outcome.rank in dict(deaths) else 0
        assert outcome.code == (0 if ended == -signal.SIGTERM else ended), launch.report(outcome)
    return [outcome.result for outcome in outcomes]


def check(results, calm, steps, tolerance=1e-5):
    """Ranks that are left are alike, and what one rank alone would be."""
    left = [result for result in results if result is not None]
    assert {result["digest"] for result in left} == {left[0]["digest"]}
    assert all(result["steps"] == steps for result in left)
    difference = max(abs(a - b) for a, b in zip(left[0]["parameters"], calm["parameters"]))
    assert difference <= tolerance
    assert {result["rate"] for result in left} == {calm["rate"]}
    assert all(result["scale"] == calm["scale"] for result in left)


def once(results, calm):
    """Every step has had the samples that it has for one rank, each of them once."""
    whole = {step: computed for step, _, _, computed in calm["seen"]}
    parts = {step: {} for step in whole}
    for result in filter(None, results):
        for step, world, rank, computed in result["seen"]:
            parts[step][rank] = computed, world
    killed = any(result is None for result in results)
    for step, ranks in parts.items():
        found = [sample for rank in sorted(ranks) for sample in ranks[rank][0]]
        if ranks and len(ranks) == max(world for _, world in ranks.values()):
            assert sorted(found) == sorted(whole[step])
        else:
            assert killed and set(found) < set(whole[step])


@pytest.fixture(scope="module")
def calm():
    return run(1, [[0]], codec="none")[0]


def test_one_rank_sees_every_sample_once_in_a_pass(calm):
    assert calm["steps"] == 22
    ids = [sample for _, _, _, computed in calm["seen"] for sample in computed]
    assert sorted(ids[:SAMPLES]) == sorted(ids[SAMPLES:]) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [0, 2])
def test_survivors_of_a_kill_do_the_step_again(calm, workers):
    results = run(3, [[0, 1, 2], [0, 2]], {1: 5}, codec="none", workers=workers)
    check(results, calm, 22)
    once(results, calm)


def test_rank_0_and_then_another_may_die_and_one_goes_on_alone(calm):
    results = run(3, [[0, 1, 2], [1, 2], [2]], {0: 3, 1: 9}, codec="none")
    check(results, calm, 22)
    once(results, calm)


def test_a_rank_that_joins_takes_over_the_state(calm):
    # All agree on the step after which the epoch ends, so that no work is lost.
    results = run(3, [[0, 1], [0, 1, 2]], (), {1: 7}, codec="none")
    check(results, calm, 22)
    once(results, calm)
    assert results[2]["seen"][0][0] == 8


def test_a_scaler_accumulation_and_running_statistics_follow():
    options = {"codec": "none", "amp": True, "accumulate": 2, "norm": True, "drop_last": True}
    calm = run(1, [[0]], **options)[0]
    results = run(3, [[0, 1, 2], [0, 2]], {1: 4}, **options)
    left = [result for result in results if result is not None]
    assert {result["digest"] for result in left} == {left[0]["digest"]}
    assert all(result["scale"] == calm["scale"] for result in left)
    assert all(result["rate"] == calm["rate"] for result in left)
    once(results, calm)


@pytest.mark.parametrize("codec", ["int8", "powersgd:2", "auto"])
def test_codecs_go_on_with_joiners_and_without_the_lost(codec):
    results = run(4, [[0, 1, 2], [1, 2], [1, 2, 3]], {0: 4}, {2: 10}, codec=codec)
    left = [result for result in results if result is not None]
    assert {result["digest"] for result in left} == {left[0]["digest"]}
    assert all(result["steps"] == 22 for result in left)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_with_a_coordinator_goes_on_without_a_rank_that_was_killed(calm, workers):
    results = run_together(3, {1: 5}, codec="none", workers=workers, pause=0.1)
    check(results, calm, 22)
    once(results, calm)
    assert {world for _, world, _, _ in results[0]["seen"]} >= {2, 3}


def test_ranks_join_a_job_under_way_and_leave_it_at_sigterm(calm):
    options = {"codec": "none", "pause": 0.15, "deadly": signal.SIGTERM}
    results = run_together(3, {1: 6}, delays={"2": 1.5}, **options)
    check(results, calm, 22)
    once(results, calm)
    assert results[1] is None
