"""Loader of graphs under several ranks, and its options, beside a naive reading of what they mean."""

import json
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

from thinwire import InvalidError  # noqa: E402
from thinwire.torch.graph import Loader, StoredGraph, division, save  # noqa: E402
from torch_models import holder  # noqa: E402

pytestmark = pytest.mark.needs("torch")

VERTICES, EDGES = 100, 600


def graph(seed=0, **more):
    random = torch.Generator().manual_seed(seed)
    return SimpleNamespace(
        edge_index=torch.randint(VERTICES, (2, EDGES), generator=random),
        x=torch.randn(VERTICES, 4, generator=random),
        y=torch.randint(3, (VERTICES,), generator=random),
        **more,
    )


def seeds_of(loader):
    """The seeds of a pass."""
    return torch.cat([batch.n_id[: batch.batch_size] for batch in loader]).tolist()


def outcome(do):
    """What `do` returns, or how it ends."""
    try:
        return do()
    except InvalidError as error:
        return str(error)


def of_ranks():
    """What loaders do that were made and used in several ways on two ranks."""
    import torch.distributed as dist

    before = Loader(graph(), [3], 8, shuffle=True)
    alone = seeds_of(before)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(VERTICES).chunk(world)[rank]

    def differs(**options):
        return outcome(lambda: seeds_of(Loader(graph(), [3], **{"batch_size": 8, **options})))

    found = {
        "before": [alone, seeds_of(before)],
        "split": seeds_of(Loader(graph(), [3], 8, shuffle=True)),
        "divided by the script": seeds_of(Loader(graph(), [3], 8, mine, split=False)),
        "divided twice": differs(input_nodes=mine),
        "seeds": differs(seed=rank),
        "batches": differs(batch_size=8 + rank),
        "graphs": outcome(lambda: seeds_of(Loader(graph(seed=rank), [3], 8))),
    }
    if rank == 0:
        found["rank 0 alone"] = seeds_of(Loader(graph(), [3], 8, split=False))
    found["again"] = seeds_of(before)
    dist.destroy_process_group()
    return found


def test_ranks_divide_seeds_once_or_hear_that_they_disagree(ranks):
    whole = list(range(VERTICES))
    both = ranks(2, of_ranks)
    for rank, found in enumerate(both):
        assert sorted(found["before"][0]) == whole, "a rank without a group is alone"
        assert found["divided by the script"] == [whole[:50], whole[50:]][rank]
        for name, text in {
            "divided twice": "seeds: ",
            "seeds": "seed 1",
            "batches": "batch 9",
        }.items():
            assert found[name].startswith("ranks disagree about a loader: rank 1 has "), name
            assert text in found[name] and "split=False" in found[name]
        assert "edges: " in found["graphs"]
    assert sorted(both[0]["rank 0 alone"]) == whole
    for name in ("before", "split", "again"):
        parts = [found[name][1] if name == "before" else found[name] for found in both]
        assert sorted(parts[0] + parts[1]) == whole, name


def gradients():
    """The gradient that DDP has of uneven parts, and that of all seeds, relative to it."""
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    dist.init_process_group("gloo")
    data, mask = graph(), torch.zeros(VERTICES, dtype=torch.bool)
    mask[:40], mask[50:53] = True, True
    loader = Loader(data, [3], 8, mask, bounds=[0, 50, VERTICES], shuffle=True)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    alone = torch.nn.Linear(4, 3)
    alone.load_state_dict(model.module.state_dict())
    errors, sizes = [], []
    for batch in loader:
        model.zero_grad(), alone.zero_grad()
        count = batch.batch_size
        loss = cross_entropy(model(batch.x)[:count], batch.y[:count], reduction="sum")
        (loss * loader.weight(batch)).backward()
        every = [None] * 2
        dist.all_gather_object(every, batch.n_id[:count].tolist())
        all_seeds = torch.tensor(every[0] + every[1])
        cross_entropy(alone(data.x[all_seeds]), data.y[all_seeds]).backward()
        right, found = alone.weight.grad, model.module.weight.grad
        errors.append(float((found - right).norm() / right.norm()))
        sizes.append([count, batch.num_seeds, len(all_seeds)])
    dist.destroy_process_group()
    return errors, sizes


def test_weighed_losses_have_the_gradient_of_all_seeds(ranks):
    for errors, sizes in ranks(2, gradients):
        assert max(errors) < 1e-5
        assert all(together == count for _, together, count in sizes)
    assert any(own == 0 for own, *_ in sizes), "the second part has fewer seeds than steps"


def test_passes_at_one_time_are_whole_passes():
    loader = Loader(graph(), [2], 10, shuffle=True)
    seen, looked = [], []
    for number, batch in enumerate(loader):
        seen += batch.n_id[: batch.batch_size].tolist()
        if number in (3, 5):
            looked.append(next(iter(loader)).n_id[:10].tolist())
    assert sorted(seen) == list(range(VERTICES))
    assert looked[0] != looked[1]
    pairs = list(zip(iter(loader), iter(loader)))
    for side in (0, 1):
        seeds = torch.cat([pair[side].n_id[:10] for pair in pairs])
        assert sorted(seeds.tolist()) == list(range(VERTICES))
    assert sorted(seeds_of(loader)) == list(range(VERTICES))


def test_a_state_is_that_of_the_pass_whatever_was_looked_at():
    loader = Loader(graph(), [2], 10, shuffle=True)
    for number, _ in enumerate(loader):
        if number == 2:
            next(iter(loader))
        if number == 3:
            break
    state = loader.state_dict()
    assert state == {"pass": 0, "step": 4}
    other = Loader(graph(), [2], 10, shuffle=True)
    whole = seeds_of(other)
    other.load_state_dict(state)
    assert seeds_of(other) == whole[40:]


def test_features_that_require_a_gradient_get_it():
    x = torch.nn.Parameter(torch.randn(VERTICES, 4))
    loader = Loader(SimpleNamespace(x=x, edge_index=graph().edge_index), [3], 10)
    for batch in loader:
        assert torch.equal(batch.x, x[batch.n_id])
        x.grad = None
        batch.x.sum().backward()
        right = torch.bincount(batch.n_id, minlength=VERTICES).float()
        assert torch.equal(x.grad, right[:, None].expand(-1, 4))
        with torch.no_grad():
            x.add_(1.0)


def test_seeds_are_any_list_of_vertices():
    numpy = pytest.importorskip("numpy")
    mask = numpy.zeros(VERTICES, dtype=bool)
    mask[:7] = True
    for nodes in (range(7), list(range(7)), numpy.arange(7), mask, torch.arange(7)):
        assert seeds_of(Loader(graph(), [2], 3, nodes)) == list(range(7))
    with pytest.raises(InvalidError, match=r"input_nodes .*float"):
        Loader(graph(), [2], 3, [0.5])


def test_rank_0_leaves_the_comparison_of_seeds_last(monkeypatch):
    """The store may end with its process, and the others still read there."""
    store, awaited = torch.distributed.HashStore(), []

    def came(said, key, timeout_s):
        awaited.append(key)
        return True

    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(division, "came", came)
    said = torch.distributed.PrefixStore("thinwire/loader/1", store)
    for rank, seeds in ((1, 7), (2, 8)):
        said.set(str(rank), json.dumps([f"{seeds} seeds"]))
    with pytest.raises(InvalidError, match="rank 2 "):
        division.agree(["7 seeds"], division.Place(0, 3))
    assert awaited == ["1 has read", "2 has read"]
    with pytest.raises(InvalidError, match="rank 2 "):
        division.agree(["7 seeds"], division.Place(1, 3))
    assert said.check(["1 has read"]) and not said.check(["2 has read"])


def test_full_batches_only():
    loader = Loader(graph(), [2], 30, shuffle=True, drop_last=True)
    assert [batch.batch_size for batch in loader] == [30] * 3 and len(loader) == 3
    parts = Loader(graph(), [2], 8, drop_last=True, bounds=[0, 70, VERTICES], rank=0, world=2)
    assert [batch.batch_size for batch in parts] == [8] * 3
    with pytest.raises(
        InvalidError, match="100 training vertices, expected at least 101 for one full"
    ):
        Loader(graph(), [2], 101, drop_last=True)


def test_options_of_other_loaders_change_nothing_or_are_refused():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            Loader(graph(), [2], 3, num_workers=2, persistent_workers=True, is_sorted=True)
    assert len([each for each in said if "threads of this process" in str(each.message)]) <= 1
    refused = {
        "disjoint": (True, "disjoint is True, expected False"),
        "generator": (torch.Generator(), "expected None (hint: seed=, equal on all ranks)"),
        "batchsize": (3, "a loader has no argument batchsize"),
    }
    for name, (value, text) in refused.items():
        with pytest.raises(InvalidError) as raised:
            Loader(graph(), [2], 3, **{name: value})
        assert text in str(raised.value)
    doubled = Loader(graph(), [2], 3, transform=lambda batch: (batch.x * 2, batch.n_id))
    for x, n_id in doubled:
        assert torch.equal(x, graph().x[n_id] * 2)
    assert len(doubled.dataset) == VERTICES


@pytest.mark.parametrize("kind", ["plain", "pyg"])
def test_attributes_have_the_entries_of_vertices_and_edges(kind):
    make = holder(kind)
    ring = torch.stack([torch.arange(6), torch.arange(6).roll(-1)])
    more = {
        "edge_attr": 10.0 * torch.arange(6),
        "edge_label_index": ring.clone(),
        "z": torch.arange(6),
    }
    for batch in Loader(make(x=torch.eye(6), edge_index=ring, **more), [1, 1], 2, [0, 3]):
        assert torch.equal(batch.edge_attr, 10.0 * batch.e_id)
        assert torch.equal(batch.z, batch.n_id)
        assert torch.equal(batch.edge_label_index, ring[:, batch.e_id])
    whole = graph()
    face, foo = torch.randint(VERTICES, (3, 50)), whole.edge_index.flip(0)
    dense = torch.sparse_coo_tensor(foo, torch.ones(EDGES), (VERTICES, VERTICES)).to_sparse_csr()
    data = make(x=whole.x, edge_index=whole.edge_index, face=face, foo_index=foo, adj_t=dense)
    for batch in Loader(data, [2], 10):
        assert torch.equal(batch.foo_index, foo[:, batch.e_id])
        assert getattr(batch, "adj_t", None) is None
    loader = Loader(data, [2], 10)
    del data.x, data.foo_index
    for batch in loader:
        assert getattr(batch, "x", None) is None and getattr(batch, "foo_index", None) is None
    only = make(x=whole.x, adj_t=dense)
    with pytest.raises(InvalidError, match="adj_t and no edge_index"):
        Loader(only, [2], 10)


def test_batches_of_a_file_move_as_pyg_s_do(tmp_path):
    save(SimpleNamespace(**vars(graph())), str(tmp_path / "small.graph"))
    stored = StoredGraph(str(tmp_path / "small.graph"))
    for layout in ("edges", "blocks"):
        batch = next(iter(Loader(stored, [3, 2], 10, layout=layout)))
        moved = batch.to("meta")
        assert moved.x.device.type == "meta" and moved.batch_size == batch.batch_size
        copied = batch.clone().cpu()
        assert torch.equal(copied.x, batch.x) and copied.x.data_ptr() != batch.x.data_ptr()
        assert set(copied.keys()) == set(batch.keys()) >= {"x", "y", "n_id", "e_id"}
        if layout == "blocks":
            assert moved.blocks[0].edge_index.device.type == "meta"
