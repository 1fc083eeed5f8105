"""Data of elastic jobs: batches dealt over changing ranks, with each sample once in a pass."""

import random

import pytest

pytestmark = pytest.mark.needs("torch")


def of(batch, start, world, length=None):
    """The rows of all ranks."""
    from thinwire.elastic.deal import Deal, Place
    from thinwire.elastic.stream import Batch

    whole = Batch(0, start, start + (batch if length is None else length))
    return [Deal(whole, Place(1, rank, world)) for rank in range(world)]


def test_a_batch_of_510_goes_to_four_and_to_three_as_the_core_deals_it():
    rows = [(deal.rows.start, deal.rows.stop) for deal in of(510, 0, 4)]
    assert rows == [(0, 128), (128, 256), (256, 383), (383, 510)]
    rows = [(deal.rows.start, deal.rows.stop) for deal in of(510, 5100, 3)]
    assert rows == [(5100, 5270), (5270, 5440), (5440, 5610)]
    assert of(510, 0, 4)[2].weight == 127 / 510


def test_parts_hold_every_row_once_and_are_even():
    for batch in (1, 2, 3, 7, 64, 510):
        for world in range(1, 9):
            deals = of(batch, 30, world)
            assert [row for deal in deals for row in deal.rows] == list(range(30, 30 + batch))
            lengths = [len(deal.rows) for deal in deals]
            assert max(lengths) - min(lengths) <= 1
            assert sum(deal.weight for deal in deals) == pytest.approx(1)


def test_a_rank_without_rows_computes_one_without_weight():
    last = of(2, 10, 3)[2]
    assert (list(last.rows), list(last.computed), last.weight) == ([], [11], 0)


def test_an_order_depends_on_seed_and_pass_alone():
    from thinwire.elastic.stream import Stream

    orders = {
        (seed, number): tuple(Stream(50, 10, seed).samples_of(number, range(50)))
        for seed in range(3)
        for number in range(3)
    }
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(orders.values())) == len(orders)
    assert orders[0, 0] == tuple(Stream(50, 7, 0).samples_of(0, range(50)))
    assert Stream(50, 10, shuffle=False).samples_of(4, range(3, 6)) == [3, 4, 5]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_batch_has_what_is_left_or_is_left_out(drop_last):
    from thinwire.elastic.stream import Position, Stream

    stream = Stream(23, 10, drop_last=drop_last)
    position, lengths = Position(), []
    while position.number == 0:
        batch = stream.at(position)
        lengths.append(batch.length)
        position = stream.after(batch)
    assert lengths == ([10, 10] if drop_last else [10, 10, 3])
    assert (position, stream.steps) == (Position(1, 0), len(lengths))


def test_impossible_streams_and_positions_are_refused():
    from thinwire import InvalidError
    from thinwire.elastic.stream import Position, Stream

    for options in ((0, 10), (5, 0), (5, 6, 0, True, True)):
        with pytest.raises(InvalidError, match="expected"):
            Stream(*options)
    for position in (Position(0, 23), Position(-1, 0), Position(0, -1)):
        with pytest.raises(InvalidError, match="no batch begins"):
            Stream(23, 10).check(position)


class Numbers:
    """A data set whose samples are their own numbers."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


class Together(Numbers):
    """One that gives many samples at once."""

    def __getitems__(self, indices):
        return list(indices)


class Script:
    """A rank of a job whose changes are written down: at optimizer step s, what becomes of it.

    `changes` maps steps, counted as they are tried, to a new (rank, world), in which the step is void.
    """

    def __init__(self, place, changes=()):
        self.changes = dict(changes)
        self.loader = None
        self.tried = 0
        self.applied = []
        self.computed = []
        self.weights = []
        self.void = False
        self.epoch = 1
        self._place = place

    @property
    def place(self):
        from thinwire.elastic.deal import Place

        return Place(self.epoch, *self._place)

    def compute(self, deal):
        self.weights.append(deal.weight)

    def keep(self):
        pass

    resume = keep

    def settle(self):
        if self.void:
            self.void = False
            self.epoch += 1
            self._place = self.changes[self.tried - 1]
            self.computed, self.weights = [], []
            self.loader.seek()

    def meet(self):
        return True

    def took(self, samples):
        self.computed += samples

    def step(self):
        """An optimizer's step."""
        self.void = self.tried in self.changes
        self.tried += 1
        if not self.void:
            self.applied.append(
                (self.place.world, self.place.rank, self.computed, sum(self.weights))
            )
            self.computed, self.weights = [], []
            self.loader.commit()


def loaded(script, size=100, batch=10, passes=2, accumulate=1, data=Numbers, **options):
    """What a rank trains on."""
    from thinwire.elastic.stream import Stream
    from thinwire.torch.elastic.loader import Loader

    names = ("seed", "shuffle", "drop_last")
    stream = Stream(size, batch, **{name: options.pop(name) for name in names if name in options})
    script.loader = loader = Loader(script, data(size), stream, **options)
    for _ in loader.passes(passes):
        for number, samples in enumerate(loader):
            script.took(samples.tolist())
            if (number + 1) % accumulate == 0:
                script.step()
    return script.applied


def together(members, steps):
    """The samples of all ranks, from what each has applied in each of its steps; `members` are the
    members' first steps and what they have applied."""
    found = []
    for step in range(steps):
        ranks = {}
        for first, applied in members:
            if first <= step < first + len(applied):
                world, rank, samples, weight = applied[step - first]
                ranks[rank] = samples if weight else []
        assert sorted(ranks) == list(range(world))
        found.append([sample for rank in sorted(ranks) for sample in ranks[rank]])
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [Numbers, Together])
def test_each_sample_comes_once_in_a_pass_whoever_is_lost(workers, data):
    # Four ranks; rank 1 is lost in step 3, rank 0 in what is step 7 with the repeated one.
    options = {"num_workers": workers, "data": data, "size": 103, "seed": 5}
    places = {0: [(0, 3)], 2: [(1, 3), (0, 2)], 3: [(2, 3), (1, 2)]}
    members = [
        (0, loaded(Script((rank, 4), zip((3, 8), changed)), **options)[:steps])
        for rank, changed, steps in [(0, places[0], 7), (2, places[2], 99), (3, places[3], 99)]
    ]
    lost = loaded(Script((1, 4)), **options)[:3]
    steps = together([*members, (0, lost)], 22)
    for number in (0, 1):
        batches = steps[number * 11 : number * 11 + 11]
        assert sorted(sample for batch in batches for sample in batch) == list(range(103))


@pytest.mark.parametrize("workers", [0, 2])
def test_any_changes_of_ranks_leave_each_step_its_samples(workers):
    # Step s has the same samples whatever the ranks are, so each rank's part of it follows.
    calm = loaded(Script((0, 1)), size=57, batch=6, num_workers=0)
    for trial in range(6 if workers else 40):
        dice = random.Random(trial)
        changes = {}
        for tried in sorted(dice.sample(range(25), dice.randrange(6))):
            world = dice.randrange(1, 8)
            changes[tried] = (dice.randrange(world), world)
        applied = loaded(Script((0, 1), changes), size=57, batch=6, num_workers=workers)
        assert len(applied) == len(calm)
        for (_, _, all_samples, _), (world, rank, samples, weight) in zip(calm, applied):
            least, longer = divmod(len(all_samples), world)
            start = rank * least + min(rank, longer)
            mine = all_samples[start : start + least + (rank < longer)]
            assert samples == (mine or all_samples[-1:])
            assert weight == pytest.approx(len(mine) / len(all_samples))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_joiner_goes_on_where_the_others_are(workers):
    from thinwire.elastic.stream import Position, Stream
    from thinwire.torch.elastic.loader import Loader

    script = Script((0, 1))
    script.loader = Loader(script, Numbers(40), Stream(40, 10, 3), num_workers=workers)
    script.loader.seek(Position(2, 20))
    seen = {
        number: [batch.tolist() for batch in script.loader] for number in script.loader.passes(4)
    }
    calm = Stream(40, 10, 3)
    assert [sample for batch in seen[2] for sample in batch] == calm.samples_of(2, range(20, 40))
    assert list(seen) == [2, 3] and len(seen[3]) == 4


def test_accumulation_is_repeated_as_a_whole():
    calm = loaded(Script((0, 1)), accumulate=5)
    applied = loaded(Script((0, 1), {1: (0, 1), 2: (0, 2)}), accumulate=5)
    assert [len(samples) for *_, samples, _ in calm] == [50] * 4
    assert [len(samples) for *_, samples, _ in applied] == [50, 25, 25, 25]
    assert applied[1][2] == [each for at in range(0, 50, 10) for each in calm[1][2][at : at + 5]]


def test_workers_do_not_load_what_is_stale():
    import torch

    from thinwire.elastic.deal import Deal, Place
    from thinwire.elastic.stream import Batch
    from thinwire.torch.elastic.loader import Dealt, Request

    class Refusing(Numbers):
        def __getitem__(self, index):
            raise AssertionError("a stale sample was loaded")

    deal = Deal(Batch(0, 0, 2), Place(1, 0, 1))
    turn = torch.ones((), dtype=torch.int64)
    assert Dealt(Refusing(2), list, turn)[Request(0, deal, [0, 1])] == (0, deal, None)


def test_data_without_numbers_and_foreign_options_are_refused():
    from torch.utils.data import IterableDataset

    from thinwire import InvalidError
    from thinwire.elastic.stream import Stream
    from thinwire.torch.elastic.loader import Loader

    class Endless(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(InvalidError, match="Endless has no samples that can be read by number"):
        Loader(Script((0, 1)), Endless(), Stream(5, 1))
    with pytest.raises(InvalidError, match="batch_size is not an option here"):
        Loader(Script((0, 1)), Numbers(5), Stream(5, 1), batch_size=2)


def scaled(samples):
    """Samples as a user's `collate_fn` makes a batch of them."""
    return {"x": [100 * sample for sample in samples]}


@pytest.mark.parametrize("context", ["fork", "spawn", None])
def test_a_loader_takes_the_options_of_a_dataloader(context, tmp_path):
    import torch

    from thinwire import InvalidError
    from thinwire.elastic.stream import Stream
    from thinwire.torch.elastic.loader import Loader

    def batches(**options):
        script = Script((1, 2))  # the second half of each batch
        script.loader = Loader(script, Numbers(12), Stream(12, 4, shuffle=False), **options)
        return list(script.loader)

    options = {"collate_fn": scaled, "generator": torch.Generator().manual_seed(3)}
    if context:
        workers = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True}
        options |= {"multiprocessing_context": context, "timeout": 60, **workers}
        options |= {"worker_init_fn": Touch(tmp_path / "began")}
    assert batches(**options) == [{"x": [200, 300]}, {"x": [600, 700]}, {"x": [1000, 1100]}]
    assert (tmp_path / "began").exists() == bool(context)
    assert batches(collate=scaled)[0] == {"x": [200, 300]}
    assert batches()[0].tolist() == [2, 3]
    with pytest.raises(InvalidError, match="in_order is False"):
        batches(in_order=False)
    with pytest.raises(TypeError, match="colate"):
        batches(colate=scaled)


class Touch:
    """A user's `worker_init_fn`, which leaves a file behind."""

    def __init__(self, file):
        self.file = file

    def __call__(self, worker):
        self.file.touch()


def test_a_tree_is_what_it_was_and_its_bytes_depend_on_its_tensors_alone():
    import torch

    from thinwire.torch.elastic import tree

    whole = {
        "b": [torch.arange(3), (torch.tensor(2.5), "text")],
        "a": {0: torch.zeros(2, 0), 1: {"x": torch.ones(5, dtype=torch.bfloat16)}},
        "n": None,
    }
    rest, tensors = tree.split(whole)
    flat, shapes = tree.packed(tensors), tree.described(tensors)
    found = tree.join(rest, tree.viewed(flat.clone(), shapes))
    assert str(found) == str(whole)
    _, other = tree.split({"n": 1, **{key: whole[key] for key in ("a", "b")}})
    assert torch.equal(tree.packed(other), flat) and tree.described(other) == shapes


def test_a_void_step_leaves_no_trace():
    import torch
    from torch import nn

    from thinwire.torch.elastic.rollback import Rollback

    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    model.register_buffer("constant", torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    rollback = Rollback(model, optimizer, {"scheduler": scheduler, "scaler": scaler})

    def step():
        loss = scaler.scale(model(torch.randn(8, 4)).sum())
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return loss.item()

    def found():
        buffers = [each.tolist() for each in model.buffers()]
        rate = optimizer.param_groups[0]["lr"]
        return buffers, rate, scheduler.state_dict(), scaler.state_dict()

    rollback.remember()
    before, first = found(), step()
    assert found() != before
    rollback.restore()
    assert found() == before
    with torch.no_grad():
        model[0].weight.fill_(1), model[0].bias.fill_(0)
    assert step() == pytest.approx(first)
