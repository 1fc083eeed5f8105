"""Loader of graphs: batches by a naive reading of their definition."""

import socket
from types import SimpleNamespace

import pytest

import launch

torch = pytest.importorskip("torch", reason="pip install torch")

from thinwire import InvalidError  # noqa: E402
from thinwire.torch.graph import Loader  # noqa: E402

pytestmark = pytest.mark.needs("torch")

VERTICES, EDGES = 60, 400


def graph(seed=0):
    random = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(VERTICES, (2, EDGES), generator=random)
    return SimpleNamespace(
        edge_index=edge_index,
        x=torch.randn(VERTICES, 3, generator=random),
        y=torch.arange(VERTICES) * 10,
        edge_attr=torch.arange(EDGES) * 7,
    )


def parts(batch):
    """What is in a batch, as values that can be compared."""
    return [batch.n_id.tolist(), batch.edge_index.tolist(), batch.e_id.tolist(), batch.x.tolist()]


def check(data, batch, fan_outs):
    seeds = batch.n_id[: batch.batch_size]
    assert len(batch.n_id.unique()) == len(batch.n_id) == batch.num_nodes
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.y, data.y[batch.n_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    # Every edge is one of the graph's, and none is there twice.
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert len(batch.e_id.unique()) == len(batch.e_id)
    # Every vertex of a hop has as many edges as it can have.
    degrees = torch.bincount(data.edge_index[1], minlength=VERTICES)
    found = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
    start = 0
    for hop, count in enumerate(batch.num_sampled_nodes):
        limit = fan_outs[hop] if hop < len(fan_outs) else 0
        wanted = degrees[batch.n_id[start : start + count]]
        wanted = wanted if limit == -1 else wanted.clamp(max=limit)
        assert torch.equal(found[start : start + count], wanted)
        start += count
    assert start == batch.num_nodes
    assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
    return seeds


@pytest.mark.parametrize("fan_outs", [[3, 2], [-1, 4], [0], [2, 2, 2]])
def test_a_batch_has_what_its_definition_says(fan_outs):
    data = graph()
    inputs = torch.randperm(VERTICES)[:25]
    loader = Loader(data, fan_outs, 4, inputs, shuffle=True, seed=3)
    assert len(loader) == 7
    for _ in range(2):
        found = []
        for batch in loader:
            seeds = check(data, batch, fan_outs)
            assert torch.equal(inputs[batch.input_id], seeds)
            found += seeds.tolist()
        assert sorted(found) == sorted(inputs.tolist())


def test_all_neighbours_give_the_whole_neighbourhood():
    data = graph()
    reached = {5}
    for _ in range(2):
        reached |= {a for a, b in data.edge_index.t().tolist() if b in reached}
    (batch,) = Loader(data, [-1, -1], 1, torch.tensor([5]))
    assert set(batch.n_id.tolist()) == reached


def test_batches_do_not_depend_on_threads_and_caches():
    def passes(**options):
        loader = Loader(graph(), [3, 3], 8, shuffle=True, **options)
        return [parts(batch) for _ in range(2) for batch in loader]

    expected = passes(threads=1)
    assert passes(threads=3) == expected
    assert passes(cache="1kB", threads=2) == expected
    assert passes(seed=2) != expected


def test_without_shuffling_seeds_are_in_their_order():
    inputs = torch.tensor([9, 4, 30, 2, 11])
    loader = Loader(graph(), [2], 2, inputs)
    assert (
        torch.cat([batch.n_id[: batch.batch_size] for batch in loader]).tolist() == inputs.tolist()
    )


def test_ranks_share_a_pass():
    data = graph()
    loaders = [Loader(data, [2], 4, shuffle=True, rank=rank, world=3) for rank in range(3)]
    assert {len(loader) for loader in loaders} == {5}
    seeds = [batch.n_id[: batch.batch_size] for loader in loaders for batch in loader]
    assert sorted(torch.cat(seeds).tolist()) == list(range(VERTICES))


def test_ranks_draw_from_their_own_parts():
    data, bounds = graph(), [0, 20, 33, VERTICES]
    for rank in range(3):
        loader = Loader(data, [2], 4, shuffle=True, rank=rank, world=3, bounds=bounds)
        assert len(loader) == 7
        seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in loader])
        assert sorted(seeds.tolist()) == list(range(bounds[rank], bounds[rank + 1]))
    with pytest.raises(InvalidError, match="3 parts, expected one per rank, 2"):
        Loader(data, [2], 4, rank=0, world=2, bounds=bounds)


def test_a_loaded_position_goes_on_where_it_was():
    whole = [parts(batch) for batch in Loader(graph(), [2, 2], 9, shuffle=True)]
    loader = Loader(graph(), [2, 2], 9, shuffle=True)
    first = [parts(batch) for _, batch in zip(range(3), loader)]
    state = loader.state_dict()
    assert (state, first) == ({"pass": 0, "step": 3}, whole[:3])
    other = Loader(graph(), [2, 2], 9, shuffle=True)
    other.load_state_dict(state)
    assert [parts(batch) for batch in other] == whole[3:]
    # A pass that was left early is over.
    assert [parts(batch) for batch in loader] == [parts(batch) for batch in other]
    with pytest.raises(InvalidError, match=r"step 7, expected steps of 0\.\.7"):
        loader.load_state_dict({"pass": 0, "step": 7})


def test_blocks_are_chained():
    data = graph()
    for batch in Loader(data, [3, 2], 4, layout="blocks"):
        assert batch.edge_index is None
        inner, outer = batch.blocks[1], batch.blocks[0]
        assert inner.size == (outer.size[1], batch.batch_size)
        assert outer.size[0] == batch.num_nodes
        degrees = torch.bincount(data.edge_index[1], minlength=VERTICES)
        for block, limit in ((inner, 3), (outer, 2)):
            sources, destinations = block.size
            assert int(block.edge_index[0].max()) < sources
            found = torch.bincount(block.edge_index[1], minlength=destinations)
            assert torch.equal(found, degrees[batch.n_id[:destinations]].clamp(max=limit))
            assert torch.equal(batch.n_id[block.edge_index], data.edge_index[:, block.e_id])


def test_rows_outlive_the_loader():
    data = graph()
    loader = iter(Loader(data, [2], 5))
    kept = [(batch.n_id, batch.x) for batch in loader]
    del loader
    for n_id, x in kept:
        assert torch.equal(x, data.x[n_id])


def test_features_have_any_dtype_and_may_be_absent():
    data = graph()
    for x in (data.x.half(), data.x.bfloat16(), (data.x * 9).to(torch.int8), data.x[:, :, None]):
        data.x = x
        for batch in Loader(data, [2], 16):
            assert torch.equal(batch.x, x[batch.n_id])
    bare = SimpleNamespace(edge_index=data.edge_index, num_nodes=VERTICES)
    assert all(not hasattr(batch, "x") for batch in Loader(bare, [2], 16))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"input_nodes": torch.tensor([VERTICES])}, r"input_nodes has vertex 60, expected 0\.\.60"),
        ({"input_nodes": torch.tensor([1, 1])}, "a vertex twice"),
        ({"input_nodes": torch.zeros(3, dtype=torch.bool)}, r"mask \[3\], expected \[60\]"),
        ({"input_nodes": torch.tensor([], dtype=torch.int64)}, "no vertices, expected at least 1"),
        ({"num_neighbors": [-2]}, "num_neighbors has -2, expected a whole number of at least -1"),
        ({"num_neighbors": [2.5]}, "num_neighbors has 2.5, expected a whole number"),
        ({"num_neighbors": "5,5"}, 'num_neighbors is "5,5", expected a list of whole numbers'),
        ({"num_neighbors": 5}, "num_neighbors is 5, expected a list of whole numbers"),
        ({"num_neighbors": iter([2])}, "num_neighbors is list_iterator, expected a list"),
        ({"num_neighbors": [2**32]}, "expected a whole number from -1 to 4294967295"),
        ({"batch_size": 0}, "batch_size 0, expected a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size 2.5, expected a whole number of at least 1"),
        ({"batch_size": "256"}, 'batch_size "256", expected a whole number of at least 1'),
        ({"batch_size": True}, "batch_size True, expected a whole number of at least 1"),
        ({"threads": -1}, "threads -1, expected a whole number of at least 1"),
        ({"threads": 10**9}, "threads 1000000000, expected a whole number from 1 to 1024"),
        ({"seed": -1}, "seed -1, expected a whole number of at least 0"),
        ({"shuffle": "no"}, 'shuffle is "no", expected True or False'),
        ({"replace": 1}, "replace is 1, expected True or False"),
        ({"features": "x"}, 'features is "x", expected SharedFeatures or None'),
        ({"features": torch.ones(VERTICES, 3)}, r"features is Tensor torch.float32 \[60, 3\]"),
        ({"cache": "lots"}, 'cache "lots", expected bytes, or text such as "64MB"'),
        ({"cache": 1.5}, "cache 1.5, expected bytes"),
        ({"cache": f"{10**30}"}, "cache .*, expected bytes"),
        ({"rank": "0", "world": 1}, 'rank "0", expected a whole number of at least 0'),
        ({"rank": 0, "world": 0}, "world 0, expected a whole number of at least 1"),
        ({"input_nodes": "train"}, 'input_nodes is "train", expected Tensor'),
        ({"input_nodes": torch.tensor([1.9])}, "input_nodes of torch.float32, expected whole"),
        ({"input_nodes": torch.tensor([1j])}, "input_nodes of torch.complex64, expected whole"),
        ({"input_nodes": torch.tensor([[1], [2]])}, r"input_nodes is \[2, 1\], expected \[seeds\]"),
        ({"bounds": 5}, "bounds is 5, expected a list of whole numbers"),
        ({"bounds": [0, "x", 60]}, 'bounds has "x", expected a whole number'),
        ({"bounds": [0, 0.5, 60]}, "bounds has 0.5, expected a whole number"),
        ({"bounds": [0, 30]}, r"bounds \[0, 30\], expected ascending numbers from 0 to 60"),
        ({"bounds": [0, 50, 40, 60]}, "expected ascending numbers from 0 to 60"),
        ({"layout": ["edges"]}, "layout list, expected one of edges, blocks"),
        ({"layout": "tree"}, 'layout "tree", expected one of edges, blocks'),
        ({"rank": 3, "world": 2}, r"rank 3, expected ranks of 0\.\.2"),
        ({"weight_attr": "edge_weight"}, "the graph has no edge_weight"),
        ({"weight_attr": 5}, "weight_attr is 5, expected str or None"),
        ({"weight_attr": "y"}, r"y is Tensor torch.int64 \[60\], expected a tensor \[400\]"),
        (
            {"weight_attr": "negative"},
            "weight of edge 0 is -1, expected a finite number of at least 0",
        ),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"num_neighbors": [2], "batch_size": 4} | change
    data = graph()
    data.negative = -torch.ones(EDGES)
    with pytest.raises(InvalidError, match=message):
        Loader(data, **arguments)


@pytest.mark.parametrize("replace", [False, True])
def test_edges_of_weight_zero_are_never_drawn(replace):
    data = graph()
    # Of the edges of a vertex, a few at odd places of the list.
    data.edge_weight = (torch.arange(EDGES) % 2).double() / 3
    degrees = torch.bincount(data.edge_index[1][1::2], minlength=VERTICES)
    for batch in Loader(data, [3], 16, weight_attr="edge_weight", replace=replace):
        assert (batch.e_id % 2 == 1).all()
        assert torch.equal(batch.edge_weight, data.edge_weight[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        found = torch.bincount(batch.edge_index[1], minlength=batch.batch_size)
        wanted = degrees[batch.n_id[: batch.batch_size]]
        wanted = 3 * (wanted > 0) if replace else wanted.clamp(max=3)
        assert torch.equal(found[: batch.batch_size], wanted)


def test_numbers_may_be_those_of_numpy_and_torch():
    data, numpy = graph(), pytest.importorskip("numpy")
    expected = [parts(batch) for batch in Loader(data, [3, 2], 8, shuffle=True, bounds=[0, 60])]
    for make in (torch.tensor, numpy.array):
        options = {"shuffle": numpy.bool_(True), "bounds": make([0, 60]), "seed": make(1)}
        loader = Loader(data, make([3, 2]), make(8), **options)
        assert [parts(batch) for batch in loader] == expected


NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"edge_index": NO_EDGES + VERTICES}, None),
        ({"edge_index": torch.tensor([[VERTICES], [0]])}, r"has vertex 60, expected 0\.\.60"),
        ({"edge_index": torch.tensor([[0], [-1]])}, r"edge_index has vertex -1, expected 0\.\.60"),
        ({"edge_index": None}, "edge_index is None, expected Tensor"),
        ({"edge_index": [[0], [1]]}, "edge_index is list, expected Tensor"),
        (
            {"edge_index": NO_EDGES.float()},
            r"torch.float32 \[2, 0\], expected torch.int64 \[2, edg",
        ),
        (
            {"edge_index": NO_EDGES.view(0, 2)},
            r"torch.int64 \[0, 2\], expected torch.int64 \[2, edg",
        ),
        ({"edge_index": NO_EDGES.to_sparse()}, "torch.sparse_coo, expected torch.strided"),
        ({"x": "abc"}, 'x is "abc", expected Tensor'),
        ({"x": torch.zeros(VERTICES)}, r"x is \[60\], expected \[vertices, features\]"),
        ({"x": torch.tensor(1.0)}, r"x is \[\], expected \[vertices, features\]"),
        ({"x": None}, "the graph has neither x nor num_nodes"),
        ({"x": None, "num_nodes": 2.5}, "num_nodes 2.5, expected a whole number of at least 0"),
        ({"x": None, "num_nodes": "5"}, 'num_nodes "5", expected a whole number of at least 0'),
        ({"num_nodes": 59}, "num_nodes 59, expected 60, the number of rows of x"),
    ],
)
def test_a_bad_graph_is_named(tmp_path, change, message):
    from thinwire.torch.graph import save

    data = graph()
    vars(data).update(change)
    for use in (lambda: Loader(data, [2]), lambda: save(data, tmp_path / "graph.tw")):
        if message is None:
            use()
            continue
        with pytest.raises(InvalidError, match=message):
            use()


@pytest.mark.parametrize(
    "state, message",
    [
        ({}, "state has nothing, expected pass and step"),
        ({"pass": 0}, "state has pass, expected pass and step"),
        ([0, 1], "state is list, expected dict"),
        ({"pass": "a", "step": 0}, 'pass "a", expected a whole number of at least 0'),
        ({"pass": 0, "step": 1.5}, "step 1.5, expected a whole number of at least 0"),
        ({"pass": -1, "step": 0}, "pass -1, expected a whole number of at least 0"),
        ({"pass": 2**63, "step": 0}, "expected a whole number from 0 to 9223372036854775807"),
        ({"pass": 0, "step": 60}, r"pass 0, step 60, expected steps of 0\.\.60"),
    ],
)
def test_a_state_that_is_none_is_named(state, message):
    with pytest.raises(InvalidError, match=message):
        Loader(graph(), [2]).load_state_dict(state)


@pytest.mark.parametrize(
    "x, options, message",
    [
        ([1, 2], {}, "x is list, expected a tensor or rows of a file"),
        (None, {}, "x is None, expected a tensor or rows of a file"),
        (torch.ones(3, 2), {"host": 5}, "host is 5, expected str or None"),
        (torch.ones(3, 2), {"timeout": "9"}, 'timeout is "9", expected seconds from 2 to'),
        (torch.ones(3, 2), {"timeout": 1}, "timeout is 1, expected seconds from 2 to"),
        (torch.ones(3, 2), {"timeout": float("nan")}, "timeout is nan, expected seconds from 2 to"),
        (
            torch.ones(3, 2),
            {"timeout": float("inf")},
            r"timeout is inf, expected seconds from 2 to 1e\+09",
        ),
        (torch.ones(3, 2), {}, "SharedFeatures needs ranks"),
    ],
)
def test_features_that_cannot_be_shared_are_named(x, options, message):
    from thinwire.torch.graph import SharedFeatures

    with pytest.raises(InvalidError, match=message):
        SharedFeatures(x, **options)


def test_models_of_pyg_take_the_batches():
    geometric = pytest.importorskip("torch_geometric", reason="pip install torch-geometric")
    made = graph()
    data = geometric.data.Data(
        x=made.x, edge_index=made.edge_index, y=made.y, edge_attr=made.edge_attr, name="kept"
    )
    data.train_mask = torch.arange(VERTICES) % 3 == 0
    convolution = geometric.nn.SAGEConv(3, 2)
    seeds = []
    for batch in Loader(data, [3, 2], 8, data.train_mask, shuffle=True):
        assert isinstance(batch, geometric.data.Data)
        assert batch.name == "kept"
        assert batch.train_mask[: batch.batch_size].all()
        check(data, batch, [3, 2])
        assert convolution(batch.x, batch.edge_index).shape == (batch.num_nodes, 2)
        seeds.append(batch.n_id[: batch.batch_size])
    assert torch.equal(torch.cat(seeds).sort().values, data.train_mask.nonzero().view(-1))


def int8(x):
    """Rows as int8 says them: whole numbers of at most 127 times a scale per row."""
    scale = x.abs().amax(1, keepdim=True) / 127
    codes = (x.double() / scale.double()).round().nan_to_num()
    return scale * codes.float()


SHARES = (25, 0, 35)
"""Rows of each of three ranks."""


def load_shared(cache, codec=None, host=None):
    import torch.distributed

    from thinwire.torch.graph import SharedFeatures

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data, whole = graph(), graph()
    start = sum(SHARES[:rank])
    own = whole.x[start : start + SHARES[rank]]
    shared = SharedFeatures(own, codec=codec, host=host)
    data.x, data.num_nodes = None, VERTICES
    if codec == "int8":
        assert shared.rows.source.width == 4 + 3
        whole.x = int8(whole.x)
    assert torch.equal(shared.rows.read(torch.tensor([59, 0, 59])), whole.x[[59, 0, 59]])
    loader = Loader(data, [3, 2], 4, shuffle=True, features=shared, cache=cache)
    passes = [list(loader) for _ in range(3)]
    for batch in sum(passes, []):
        assert torch.equal(batch.x, whole.x[batch.n_id])
    asked = sum(
        int(((batch.n_id < start) | (batch.n_id >= start + SHARES[rank])).sum())
        for batch in sum(passes, [])
    )
    # Nobody leaves while others ask.
    torch.distributed.barrier()
    seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in passes[0]])
    return seeds.tolist(), shared.fetched, asked


@pytest.mark.parametrize("cache", [None, "10kB"])
@pytest.mark.parametrize("format", [None, "int8"])
def test_ranks_read_each_others_rows(cache, format):
    outcomes = launch.results(launch.run(3, load_shared, arguments=[cache, format]))
    assert sorted(sum((seeds for seeds, _, _ in outcomes), [])) == list(range(VERTICES))
    for _, fetched, asked in outcomes:
        if cache is None:
            # Batches beyond the last one are loaded too.
            assert fetched >= asked > 0
        else:
            # All rows fit, so each is asked for once, beside the three that were read directly.
            assert fetched <= VERTICES + 3


def load_from_features_that_only_others_keep():
    import torch.distributed

    from thinwire.torch.graph import SharedFeatures

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    data, whole = graph(), graph()
    own = whole.x[30 * rank :][:30]
    data.x, data.num_nodes = None, VERTICES
    loader = Loader(data, [3, 2], 4, features=SharedFeatures(own))
    rows = SharedFeatures(own).rows  # as stores of other libraries keep them
    torch.distributed.barrier()
    equal = all(torch.equal(batch.x, whole.x[batch.n_id]) for batch in loader)
    equal &= torch.equal(rows.read(torch.arange(VERTICES)), whole.x)
    torch.distributed.barrier()
    return equal


def test_loaders_and_stores_keep_the_features_that_ranks_share():
    outcomes = launch.results(launch.run(2, load_from_features_that_only_others_keep))
    assert outcomes == [True, True]


@pytest.mark.parametrize("host", ["localhost", "::1", socket.gethostname()])
def test_ranks_are_reached_by_the_name_that_the_user_gives(host):
    try:
        socket.create_server((host, 0), family=socket.getaddrinfo(host, 0)[0][0]).close()
    except OSError as error:
        pytest.skip(f"{host}: {error}")
    launch.results(launch.run(3, load_shared, arguments=["10kB", None, host]))


def stored(path, x, **options):
    from thinwire.torch.graph import StoredGraph, save

    data = graph()
    data.x = x
    data.y[7] = -1
    uses = torch.arange(VERTICES) % 4
    data.train_mask, data.val_mask, data.test_mask = (uses == number for number in (1, 2, 3))
    save(data, path, **options)
    return data, StoredGraph(path)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_graph_in_a_file_is_the_graph(tmp_path, dtype):
    x = torch.randn(VERTICES, 5).to(getattr(torch, dtype))
    data, file = stored(tmp_path / "graph.tw", x)
    assert (file.num_nodes, file.num_edges, file.num_features) == (VERTICES, EDGES, 5)
    assert torch.equal(file.y, data.y)
    for name in ("train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(file, name), getattr(data, name))
    edges = sorted(map(tuple, data.edge_index.t().tolist()))
    found = set()
    for batch in Loader(file, [-1], 9, cache="200B"):
        assert torch.equal(batch.x, x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        found |= set(map(tuple, batch.n_id[batch.edge_index].t().tolist()))
    assert sorted(found) == sorted(set(edges))


def test_a_file_keeps_weights_and_types(tmp_path):
    from thinwire.torch.graph import StoredGraph, save

    path = tmp_path / "graph.tw"
    data = graph()
    data.edge_weight, data.node_type = torch.rand(EDGES), torch.arange(VERTICES) % 3
    data.edge_weight[::2] = 0
    save(data, path)
    file = StoredGraph(path)
    assert torch.equal(file.node_type, data.node_type)
    known = {
        (*edge, weight)
        for *edge, weight in zip(*data.edge_index.tolist(), data.edge_weight.tolist())
    }
    for batch in Loader(file, [4], 9, weight_attr="edge_weight"):
        assert torch.equal(batch.node_type, data.node_type[batch.n_id])
        ends = batch.n_id[batch.edge_index].tolist()
        assert {
            (*edge, weight) for *edge, weight in zip(*ends, batch.edge_weight.tolist())
        } <= known
        assert (batch.edge_weight > 0).all()
    data.edge_weight[7] = float("nan")
    with pytest.raises(InvalidError, match="is NaN, expected a finite number of at least 0"):
        save(data, path)
    data.edge_weight = None
    data.node_type[5] = -2
    with pytest.raises(InvalidError, match="node_type is -2 at vertex 5, expected 0 to 65535"):
        save(data, path)
    del data.node_type
    save(data, path)
    assert StoredGraph(path).edge_weight is None and StoredGraph(path).node_type is None


def test_features_of_a_file_may_be_bytes_with_a_scale(tmp_path):
    x = torch.randn(VERTICES, 5)
    x[3] = 0
    data, file = stored(tmp_path / "graph.tw", x, codec="int8")
    assert torch.equal(file.rows().read(torch.arange(VERTICES)), int8(x))
    for cache in (None, "200B"):
        for batch in Loader(file, [-1], 9, cache=cache):
            assert batch.x.dtype == torch.float32
            assert torch.equal(batch.x, int8(x)[batch.n_id])
    with pytest.raises(
        InvalidError, match='codec "int4" for x of torch.float32, expected one of f32, int8'
    ):
        stored(tmp_path / "graph.tw", x, codec="int4")
    with pytest.raises(
        InvalidError, match='codec "int8" for x of torch.float16, expected one of f16'
    ):
        stored(tmp_path / "graph.tw", x.half(), codec="int8")
    with pytest.raises(InvalidError, match=r"row 60, expected rows of 0\.\.60"):
        file.rows().read(torch.tensor([0, VERTICES]))


@pytest.mark.needs("torch_geometric")
@pytest.mark.parametrize("types", [{}, {"node_type": "page", "edge_type": ("page", "to", "page")}])
def test_stores_of_pyg_have_the_graph(tmp_path, types):
    from torch_geometric.loader.utils import filter_custom_hetero_store, filter_custom_store

    from thinwire.torch.graph.pyg import stores

    x = torch.randn(VERTICES, 5)
    data, file = stored(tmp_path / "graph.tw", x)
    features, graph = stores(file, **types)
    # By type of edges, if there are types.
    found = [list(part.values())[0] if isinstance(part, dict) else part for part in graph.csc()]
    row, offsets, order = found
    column = torch.repeat_interleave(torch.arange(VERTICES), offsets.diff())
    found, expected = (
        sorted(zip(*edges)) for edges in ((row.tolist(), column.tolist()), data.edge_index.tolist())
    )
    assert order is None and found == expected
    node = types.get("node_type")
    assert features.get_tensor_size(group_name=node, attr_name="x") == (VERTICES, 5)
    for index in (None, slice(3, 9), torch.tensor([5, 5, 0])):
        read = features.get_tensor(group_name=node, attr_name="x", index=index)
        assert torch.equal(read, x if index is None else x[index])
    n_id, edge = torch.tensor([8, 2, 40]), torch.tensor([0, 1])
    if node is None:
        batch = filter_custom_store(features, graph, n_id, edge, edge, None)
    else:
        kind = types["edge_type"]
        parts = ({node: n_id}, {kind: edge}, {kind: edge}, {})
        batch = filter_custom_hetero_store(features, graph, *parts)[node]
    assert torch.equal(batch.x, x[n_id]) and torch.equal(batch.y, data.y[n_id])


def parquet(path, **columns):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.needs("pyarrow")
def test_parquet_has_the_graph(tmp_path):
    from thinwire.torch.graph import StoredGraph, save
    from thinwire.torch.graph.parquet import read_parquet

    data = graph()
    src, dst = data.edge_index.numpy()
    weight = torch.rand(EDGES)
    edges = parquet(tmp_path / "e.parquet", w=weight.numpy(), dst=dst, src=src.astype("uint32"))
    labels = [None if vertex == 7 else vertex for vertex in range(VERTICES)]
    rows = data.x.tolist()
    parts = {f"x{at}": data.x[:, at].numpy() for at in range(3)}
    nodes = parquet(tmp_path / "v.parquet", x=rows, y=labels, **parts)
    for features in ("x", ["x0", "x1", "x2"]):
        read = read_parquet(
            edges, ("src", "dst", "w"), vertices=nodes, features=features, labels="y"
        )
        assert torch.equal(read.edge_index, data.edge_index)
        assert torch.equal(read.edge_weight, weight) and torch.equal(read.x, data.x)
        assert read.y.tolist() == [-1 if label is None else label for label in labels]
        assert read.num_nodes == VERTICES
    save(read, tmp_path / "graph.tw")
    file = StoredGraph(tmp_path / "graph.tw")
    assert (file.num_nodes, file.num_edges, file.num_features) == (VERTICES, EDGES, 3)
    assert sorted(file.edge_weight.tolist()) == sorted(weight.tolist())
    assert read_parquet(edges, vertices=99).num_nodes == 99
    assert not hasattr(read_parquet(edges), "edge_weight")


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize(
    "edges, nodes, message",
    [
        ({"src": None}, None, "has no column src, expected one of dst, w"),
        ({"src": [0, None]}, None, "src has no value in row 1"),
        ({"src": [0, -4]}, None, "src is -4 in row 1, expected vertices numbered from 0"),
        ({"src": [0.5, 1.0]}, None, "src is double, expected whole numbers"),
        ({"w": [1.0, float("nan")]}, None, "w is nan in row 1, expected finite float32"),
        ({"w": [1.0, -2.0]}, None, "w is -2.0 in row 1, expected 0 and more"),
        ({"w": ["a", "b"]}, None, "w is string, expected numbers"),
        ({}, {"x": [[1.0], [2.0]]}, r"e.parquet has vertex 2, expected 0\.\.2"),
        ({}, {"x": [[1.0], [2.0, 3.0], [1.0]]}, "x has 2 numbers in row 1, expected 1"),
        ({}, {"x": [1.0, 2.0, 3.0], "y": [0.5, 1.0, 2.0]}, "y is double, expected whole numbers"),
    ],
)
def test_parquet_that_is_no_graph_is_named(tmp_path, edges, nodes, message):
    from thinwire.torch.graph.parquet import read_parquet

    columns = {"src": [0, 1], "dst": [1, 2], "w": [1.0, 2.0]} | edges
    columns = {name: values for name, values in columns.items() if values is not None}
    arguments = {}
    if nodes is not None:
        path = parquet(tmp_path / "v.parquet", **nodes)
        arguments = {"vertices": path, "features": "x"} | ({"labels": "y"} if "y" in nodes else {})
    with pytest.raises(InvalidError, match=message):
        read_parquet(parquet(tmp_path / "e.parquet", **columns), ("src", "dst", "w"), **arguments)


@pytest.mark.needs("pyarrow")
def test_files_that_are_no_parquet_are_named(tmp_path):
    from thinwire.torch.graph.parquet import read_parquet

    path = tmp_path / "e.parquet"
    with pytest.raises(InvalidError, match="e.parquet: .*No such file"):
        read_parquet(path)
    path.write_bytes(b"PAR1 no file")
    with pytest.raises(InvalidError, match="e.parquet: "):
        read_parquet(path)
    parquet(path, src=[0], dst=[1])
    with pytest.raises(InvalidError, match="need a file of vertices, expected vertices=FILE"):
        read_parquet(path, labels="y")
    for columns, found in (("src", '"src"'), (5, "5"), ({"src": 1, "dst": 2}, "{.*}")):
        with pytest.raises(InvalidError, match=f"columns {found}, expected those of source, dest"):
            read_parquet(path, columns)
    with pytest.raises(InvalidError, match="edges is 5, expected the path of a file"):
        read_parquet(5)
    with pytest.raises(InvalidError, match="vertices 2.5, expected a whole number of at least 0"):
        read_parquet(path, vertices=2.5)
    for features, message in (([], "features names no column"), (5, "features is 5, expected str")):
        with pytest.raises(InvalidError, match=message):
            read_parquet(path, vertices=path, features=features)


def test_labels_below_zero_are_none(tmp_path):
    from thinwire.torch.graph import StoredGraph, save

    data = graph()
    data.y = torch.arange(VERTICES) - 100
    data.y[9] = 3
    save(data, tmp_path / "graph.tw")
    assert torch.equal(StoredGraph(tmp_path / "graph.tw").y, data.y.clamp(min=-1))


def with_value(x, value):
    x = x.clone()
    x[5, 1] = value
    return x


ALL = torch.ones(VERTICES, dtype=torch.bool)


@pytest.mark.parametrize(
    "change, options, message",
    [
        ({"x": float("nan")}, {}, "x is nan at vertex 5, feature 1, expected a finite number"),
        ({"x": float("inf")}, {"codec": "int8"}, "x is inf at vertex 5, feature 1, expected a fi"),
        (
            {"x": torch.full((VERTICES, 2), -torch.inf).half()},
            {},
            "x is -inf at vertex 0, feature 0",
        ),
        (
            {"x": torch.ones(VERTICES, 2, 2)},
            {},
            r"\[60, 2, 2\], expected float32 or float16 \[V, F\]",
        ),
        ({"y": torch.ones(VERTICES)}, {}, "y of torch.float32, expected whole numbers"),
        ({"y": [1] * VERTICES}, {}, "y is list, expected Tensor"),
        ({"y": torch.arange(9)}, {}, r"y is \[9\], expected \[60\]"),
        ({"y": torch.arange(VERTICES) << 31}, {}, "y is 4294967296 at vertex 2, expected at most"),
        ({"node_type": ALL.float()}, {}, "node_type of torch.float32, expected whole numbers"),
        ({"train_mask": [True]}, {}, "train_mask is list, expected Tensor"),
        ({"val_mask": ALL.int()}, {}, "val_mask is torch.int32, expected torch.bool"),
        (
            {"train_mask": ALL, "test_mask": ALL},
            {},
            "train_mask and test_mask both have vertex 0, expec",
        ),
        ({}, {"bounds": 5}, "bounds is 5, expected a list of whole numbers"),
        ({}, {"bounds": [0, 60.0]}, "bounds has 60.0, expected a whole number of at least 0"),
        ({}, {"bounds": [0, 30]}, r"bounds \[0, 30\], expected ascending numbers from 0 to 60"),
        ({}, {"codec": ["f32"]}, "codec list for x of torch.float32, expected one of f32, int8"),
        (
            {"x": None, "num_nodes": VERTICES},
            {"codec": "int8"},
            'codec "int8" for a graph without',
        ),
    ],
)
def test_graphs_that_no_file_has_are_named(tmp_path, change, options, message):
    from thinwire.torch.graph import save

    data = graph()
    if isinstance(change.get("x"), float):
        change = {"x": with_value(data.x, change["x"])}
    vars(data).update(change)
    with pytest.raises(InvalidError, match=message):
        save(data, tmp_path / "graph.tw", **options)
    assert not (tmp_path / "graph.tw").exists()


@pytest.mark.parametrize(
    "use, message",
    [
        (lambda file: file.rows(-1), "start -1, expected a whole number of at least 0"),
        (lambda file: file.rows(0, 2.5), "end 2.5, expected a whole number of at least 0"),
        (lambda file: file.rows(5, 2), r"rows 5\.\.2, expected rows of 0\.\.60"),
        (lambda file: file.part("a"), 'part "a", expected a whole number of at least 0'),
        (lambda file: file.part(2), "part 2, expected one of 2 parts"),
        (
            lambda file: file.rows().read("a"),
            'index is "a", expected whole numbers, a slice or None',
        ),
        (lambda file: file.rows().read([0.5]), "index of torch.float32, expected whole numbers"),
        (lambda file: file.rows().read(ALL), "index of torch.bool, expected whole numbers"),
    ],
)
def test_rows_that_no_file_has_are_named(tmp_path, use, message):
    _, file = stored(tmp_path / "graph.tw", torch.randn(VERTICES, 2), bounds=[0, 20, VERTICES])
    with pytest.raises(InvalidError, match=message):
        use(file)


@pytest.mark.needs("torch_geometric")
@pytest.mark.parametrize(
    "change, message",
    [
        ({"graph": "x"}, 'graph is "x", expected StoredGraph'),
        ({"features": "x"}, 'features is "x", expected SharedFeatures or None'),
        ({"node_type": 5}, "node_type is 5, expected str or None"),
        ({"edge_type": "to"}, 'edge_type is "to", expected tuple or None'),
    ],
)
def test_stores_of_what_is_no_graph_are_named(tmp_path, change, message):
    from thinwire.torch.graph.pyg import stores

    _, file = stored(tmp_path / "graph.tw", torch.randn(VERTICES, 2))
    with pytest.raises(InvalidError, match=message):
        stores(**({"graph": file} | change))


def test_files_that_are_none_are_named(tmp_path):
    from thinwire.torch.graph import StoredGraph, save

    path = tmp_path / "graph.tw"
    with pytest.raises(InvalidError, match=r"graph\.tw: cannot open"):
        StoredGraph(path)
    with pytest.raises(InvalidError, match="is a folder, expected a file"):
        StoredGraph(tmp_path)
    for wrong in (5, None, [path]):
        with pytest.raises(InvalidError, match="path is .*, expected the path of a file"):
            StoredGraph(wrong)
        with pytest.raises(InvalidError, match="path is .*, expected the path of a file"):
            save(graph(), wrong)
    path.write_bytes(b"no graph")
    with pytest.raises(InvalidError, match=r"graph\.tw: 8 bytes, expected a header"):
        StoredGraph(path)
    data, file = stored(path, torch.randn(VERTICES, 2))
    with pytest.raises(InvalidError, match="part 0, expected one of 0 parts"):
        file.part(0)
    data.x = data.x.double()
    with pytest.raises(InvalidError, match=r"x is torch.float64 \[60, 2\]"):
        save(data, path)
