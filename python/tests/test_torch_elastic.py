"""Elastic jobs of PyTorch over epochs that are written down: who is in each, and who dies when."""

import contextlib
import importlib
import json
import math
import os
import signal
import struct
import subprocess
import sys
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
        self.ends_at, self.told = {}, []

    def next(self):
        from thinwire._core import Epoch, Group

        while True:
            self.number += 1
            if self.number > len(self.epochs):
                return None
            members, address = self.epochs[self.number - 1]
            if self.me in members:
                break
        members, state_sources = self.arranged(members)
        self.members = members
        rank, world = members.index(self.me), len(members)
        place = (rank, world, address, TOKEN) if world > 1 else (0, 1)
        self.groups.append(Group.join(*place, launched=world > 1, timeout_s=300.0))
        return Epoch.of(self.groups[-1], self.number, state_sources)

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
        state_sources = sum(steps == newest for steps in said.values()) if newest >= 0 else 0
        return sorted(members, key=lambda each: -said[each]), state_sources

    def wants_end(self):
        return self.steps + 1 == self.ends_at.get(self.number)

    def applied(self, steps):
        self.steps = steps

    synced = applied

    def halted(self):
        pass

    complete = halted

    def tell(self, figures):
        self.told.append(json.loads(figures))

    def leave(self):
        return True

    def successors(self):
        """Who is not in the next epoch hands on what it owes to the first that is."""
        members, later = self.members, self.epochs[self.number : self.number + 1]
        going = [each for each in members if later and each not in later[0][0]]
        staying = [each for each in members if each not in going]
        return [(members.index(each), members.index(staying[0])) for each in going]


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
    # As if every step took long, so that ranks look what the others do meanwhile.
    importlib.import_module("thinwire.torch.hook").LOOK_S = 1e-4
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
    overflow, fused = options.pop("overflow", float("inf")), options.pop("fused", False)
    full = options.pop("full", 1)
    deadly, pause = options.pop("deadly", signal.SIGKILL), options.pop("pause", 0)
    drop_last = options.pop("drop_last", False)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 10))
    if not options.pop("norm", False):
        model[1] = nn.Identity()
    if fused:  # fused SGD takes up an uninitialised momentum if its first step is skipped
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    elastic = Elastic(model, optimizer, batch=BATCH, members=members, **options)
    note_owed(elastic, Path(folder, f"owed-{me}"))
    loader = elastic.loader(problem(), num_workers=workers, seed=1, drop_last=drop_last)
    scaler = torch.amp.GradScaler("cpu", enabled=amp, growth_interval=4)
    elastic.follow(scheduler=scheduler, scaler=scaler)
    seen, tries, all_came = [], 0, False
    for _ in loader.passes(passes):
        for number, (ids, inputs, labels) in enumerate(loader):
            if (number % accumulate) == 0:
                optimizer.zero_grad()
                computed = []
            computed += ids.tolist()
            loss = cross_entropy(elastic.model(inputs), labels) / accumulate
            if scaler.get_scale() > overflow:
                loss = loss * float("inf")
            if (number + 1) % accumulate:
                with elastic.model.no_sync():
                    scaler.scale(loss).backward()
                continue
            if tries >= deaths.get(str(me), math.inf) and elastic.world >= full:
                del deaths[str(me)]
                os.kill(os.getpid(), deadly)
            tries += 1
            all_came |= elastic.world >= full
            time.sleep(pause if all_came else 20 * pause)  # for the others to join
            scaler.scale(loss).backward()
            steps = elastic.steps
            torch.rand(())  # as a dropout draws
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
        "random": torch.get_rng_state().tolist(),
        "told": members.told if members else [],
    }


def note_owed(elastic, file):
    """Writes down what this rank owes before and after the end of every epoch."""
    exchange = elastic._exchange
    part = exchange.part

    def owed():
        found = {}
        for name, (_, values) in exchange.sync.state()[1].items():
            if name.startswith("residual."):
                found[name] = sum(struct.unpack(f"{len(values) // 4}f", values))
        return found

    def noted(successors):
        before = owed()
        part(successors)
        with file.open("a") as lines:
            print(json.dumps([elastic.rank, before, owed()]), file=lines)

    exchange.part = noted


def run(world, epochs, deaths=(), ends=(), folder=None, program=train, **options):
    """What each process returned; None where it was killed or has left."""
    import thinwire

    stores = [thinwire.Store("127.0.0.1", 0, TOKEN) for _ in epochs]
    epochs = [(epoch, store.address) for epoch, store in zip(epochs, stores)]
    script = [{str(key): at for key, at in dict(each).items()} for each in (deaths, ends)]
    with tempfile.TemporaryDirectory() as made:
        arguments = [epochs, str(folder or made), *script, options]
        outcomes = launch.run(world, program, arguments=arguments)
    for outcome in outcomes:
        assert outcome.code == (-signal.SIGKILL if outcome.rank in dict(deaths) else 0), (
            launch.report(outcome)
        )
    return [outcome.result for outcome in outcomes]


def run_together(world, deaths=(), **options):
    """What each process of a job with a coordinator returned; None where it was killed or has left."""
    from thinwire._core import Coordinator

    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder, "state")
        coordinator = Coordinator("127.0.0.1:0", TOKEN, min_ranks=2, state=state)
        arguments = [None, folder, {str(me): at for me, at in dict(deaths).items()}, {}, options]
        env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
        outcomes = launch.run(world, train, arguments=arguments, env=env)
    for outcome in outcomes:
        ended = -options.get("deadly", signal.SIGKILL) if outcome.rank in dict(deaths) else 0
        assert outcome.code == (ended if ended == -signal.SIGKILL else 0), launch.report(outcome)
    return [outcome.result for outcome in outcomes]


def check(results, calm, steps, tolerance=1e-5):
    """Ranks that are left are alike, and what one rank alone would be."""
    left = [result for result in results if result is not None]
    assert {result["digest"] for result in left} == {left[0]["digest"]}
    assert all(result["steps"] == steps for result in left)
    assert all(result["random"] == left[0]["random"] for result in left)
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


def test_ranks_tell_their_figures():
    first, second = run(2, [[0, 1]], codec="int8", pause=0.1)
    told = first["told"][-1]
    assert 0 < told["step"] <= 22
    time_of = told["time"]
    parts = sum(time_of[f"{name}_s"] for name in ("compute", "wait", "other"))
    assert parts == pytest.approx(time_of["step_s"], rel=1e-6) and parts > 0.1
    assert told["samples_per_s"] == pytest.approx(BATCH / time_of["step_s"], rel=1e-6)
    assert {way["codec"] for way in told["buckets"]} == {"int8", "none"}
    assert second["told"] and "buckets" not in second["told"][-1]


def test_a_scaler_accumulation_and_running_statistics_follow():
    options = {"codec": "none", "amp": True, "accumulate": 2, "norm": True, "drop_last": True}
    calm = run(1, [[0]], **options)[0]
    results = run(3, [[0, 1, 2], [0, 2]], {1: 4}, **options)
    left = [result for result in results if result is not None]
    assert {result["digest"] for result in left} == {left[0]["digest"]}
    assert all(result["scale"] == calm["scale"] for result in left)
    assert all(result["rate"] == calm["rate"] for result in left)
    once(results, calm)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_scaler_skips_are_none_whoever_is_lost(fused):
    # A scale above 2^14 overflows: the first two batches, and one of five after that.
    options = {"codec": "none", "amp": True, "overflow": 2.0**14, "fused": fused}
    calm = run(1, [[0]], **options)[0]
    assert calm["steps"] < 22 - 4 and calm["scale"]["scale"] <= 2.0**15
    for death, end in [(1, 1), (6, 6)]:  # in the second one skipped, and after it
        results = run(4, [[0, 1, 2], [0, 2], [0, 2, 3]], {1: death}, {2: end + 2}, **options)
        check(results, calm, calm["steps"], 1e-3 if fused else 1e-5)
        once(results, calm)


def test_a_leaver_hands_on_what_it_owes(tmp_path):
    results = run(3, [[0, 1, 2], [0, 2]], (), {1: 7}, folder=tmp_path, codec="int4")
    left = [result for result in results if result is not None]
    assert len(left) == 2 and len({result["digest"] for result in left}) == 1
    notes = [file.read_text().splitlines() for file in sorted(tmp_path.glob("owed-*"))]
    (_, *first), (_, *leaver), (_, *other) = [json.loads(lines[0]) for lines in notes]
    assert other[0] == other[1] and any(leaver[0].values())
    for name, owed in leaver[0].items():
        assert first[1][name] == pytest.approx(first[0][name] + owed, abs=1e-5)


@pytest.mark.parametrize("codec", ["int8", "powersgd:2", "auto"])
def test_codecs_go_on_with_joiners_and_without_the_lost(codec):
    results = run(4, [[0, 1, 2], [1, 2], [1, 2, 3]], {0: 4}, {2: 10}, codec=codec)
    left = [result for result in results if result is not None]
    assert {result["digest"] for result in left} == {left[0]["digest"]}
    assert all(result["steps"] == 22 for result in left)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_with_a_coordinator_goes_on_without_a_rank_that_was_killed(calm, workers):
    options = {"codec": "none", "workers": workers, "pause": 0.1, "full": 3}
    results = run_together(3, {1: 5}, **options)
    check(results, calm, 22)
    once(results, calm)
    assert {world for _, world, _, _ in results[0]["seen"]} >= {2, 3}


@pytest.mark.parametrize("deadly", [signal.SIGTERM, signal.SIGINT])
def test_ranks_join_a_job_under_way_and_leave_it_at_a_signal(calm, deadly):
    options = {"codec": "none", "pause": 0.15, "deadly": deadly}
    results = run_together(3, {1: 6}, delays={"2": 1.5}, **options)
    check(results, calm, 22)
    once(results, calm)
    assert results[1] is None


def branches(steps):
    """Ranks use one of two layers by turns, and never the third."""
    import torch

    import thinwire.torch
    from torch_models import Branches, digest

    torch.manual_seed(0)
    model = Branches()
    never = model.never.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    elastic = thinwire.torch.Elastic(
        model, optimizer, batch=BATCH, codec="none", find_unused_parameters=True
    )
    model.forward = lambda inputs: model.branches[(elastic.steps + elastic.rank) % 2](inputs)
    loader = elastic.loader(problem(), drop_last=True)
    for _ in loader.passes(steps * BATCH // SAMPLES + 1):
        for _, inputs, _ in loader:
            optimizer.zero_grad()
            elastic.model(inputs).square().mean().backward()
            optimizer.step()
    return digest(model), torch.equal(never, model.never.weight), elastic.world


def join(different, folder):
    """Rank 0 trains until rank 1, in which something is `different`, has been refused."""
    import torch

    import thinwire.torch
    from thinwire.torch.elastic import job

    other = int(os.environ["RANK"]) == 1 and different
    begun, refused = Path(folder, "begun"), Path(folder, "refused")
    if other:
        while not begun.exists():
            time.sleep(0.01)
    job.__version__ = "9.9.9" if other == "version" else job.__version__
    model = torch.nn.Linear(16, 11 if other == "model" else 10)
    kind = torch.optim.Adam if other == "optimizer" else torch.optim.SGD
    data = torch.utils.data.Subset(problem(), range(100 if other == "data" else SAMPLES))
    try:
        optimizer = kind(model.parameters(), lr=0.1)
        if other == "groups":
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        batch = 13 if other == "batch" else BATCH
        elastic = thinwire.torch.Elastic(model, optimizer, batch=batch, codec="none")
        loader = elastic.loader(data, seed=1)
    except (thinwire.InvalidError, ValueError) as error:
        refused.touch()
        return str(error)
    last = None
    for _ in loader.passes(10_000):
        for _, inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(elastic.model(inputs), labels).backward()
            optimizer.step()
            begun.touch()
            time.sleep(0.01)
            if last is None and refused.exists():
                last = elastic.steps + 20
            if elastic.steps == last:
                return elastic.world
    return None


def with_coordinator(world, function, arguments, min_ranks=1):
    """What each process of a job returned."""
    from thinwire._core import Coordinator

    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder, "state")
        coordinator = Coordinator("127.0.0.1:0", TOKEN, min_ranks=min_ranks, state=state)
        env = dict(coordinator.seat(), THINWIRE_MEMBER="new")
        return launch.results(launch.run(world, function, arguments=arguments, env=env))


def test_parameters_that_another_rank_has_used_are_updated_everywhere():
    first, second = with_coordinator(2, branches, [10], min_ranks=2)
    assert first == second
    assert first[1:] == [True, 2]


@pytest.mark.parametrize(
    ("different", "values"),
    [
        ("batch", ["12", "13"]),
        ("model", ["Linear of 2 parameters"]),
        ("optimizer", ["SGD", "Adam"]),
        ("version", ["9.9.9"]),
        ("data", ["100", "123"]),
        ("groups", ["different number of parameter groups"]),
    ],
)
def test_a_process_of_another_training_is_refused_in_one_line(different, values, tmp_path, caplog):
    world, said = with_coordinator(2, join, [different, str(tmp_path)])
    assert world == 1
    assert all(value in said for value in values) and "\n" not in said
    if different not in ("data", "groups"):  # which the process itself sees, once it has joined
        # Ids of processes, which other lines have, may contain any number.
        told = [each for each in caplog.records if "refused" in each.getMessage()]
        assert len(told) == 1 and told[0].name == "thinwire" and values[-1] in told[0].getMessage()


def test_a_torchrun_that_ends_all_its_ranks_is_refused_with_a_hint(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import torch, thinwire.torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "thinwire.torch.Elastic(model, optimizer, batch=4)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode != 0
    assert "torchrun ends all its 2 ranks when one dies (hint: a torchrun" in ended.stderr
