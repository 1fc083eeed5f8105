"""GraphBolt over Thinwire's graphs and features.

DGL 2.1 is built for another PyTorch than that of the test environment, where all but the first tests are
skipped. They pass in an environment of their own, with Python 3.11:

    pip install dgl==2.1.0 torch==2.2.1 torchdata==0.7.1 'numpy<2' scipy pandas pydantic pyyaml
    pip install pytest pytest-timeout
    PYTHONPATH=target/python/site python -m pytest python/tests/test_torch_graphbolt.py
"""

import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

from thinwire import InvalidError  # noqa: E402
from thinwire.torch.graph import StoredGraph, save  # noqa: E402

pytestmark = pytest.mark.needs("torch")

try:
    import dgl
    from dgl import graphbolt as gb

    missing = ""
except (ImportError, FileNotFoundError) as error:
    missing = f"{error}: DGL 2.1 needs torch 2.2, see {__name__}"

needs_graphbolt = pytest.mark.skipif(bool(missing), reason=missing)

VERTICES, EDGES = 60, 400

# What the PyTorch of DGL has not.
WITHOUT_NEWER_NAMES = """
import torch, torch.distributed.fsdp
from torch._C import _distributed_c10d as c10d
vars(torch.distributed.fsdp).pop("FSDPModule", None)
if hasattr(c10d.Backend, "Options"):
    del c10d.Backend.Options
torch._ops._higher_order_ops.clear()
vars(torch.ops.higher_order).pop("wrap_with_set_grad_enabled", None)
import thinwire.torch.graph
"""


def ended(code):
    """How a process of its own ends that runs `code`."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_the_import_needs_no_names_of_newer_releases():
    done = ended(WITHOUT_NEWER_NAMES)
    assert done.returncode == 0, done.stderr


def test_dgl_that_is_missing_is_named():
    done = ended("import sys; sys.modules['dgl'] = None\nimport thinwire.torch.graph.graphbolt")
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("ImportError: thinwire.torch.graph.graphbolt needs DGL")
    assert "pip install dgl==2.1.0 torch==2.2.1" in message
    assert "scipy pandas pydantic pyyaml" in message


@pytest.fixture
def stored(tmp_path):
    """A graph with weights, as tensors and as a file."""
    random = torch.Generator().manual_seed(1)
    data = SimpleNamespace(
        x=torch.randn(VERTICES, 5, generator=random),
        edge_index=torch.randint(VERTICES, (2, EDGES), generator=random),
        edge_weight=(torch.arange(EDGES) % 2).float(),
    )
    save(data, tmp_path / "graph.tw")
    return data, StoredGraph(tmp_path / "graph.tw")


@needs_graphbolt
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_are_those_of_a_tensor(stored, dtype):
    from thinwire.torch.graph.graphbolt import Feature, feature_store

    data, file = stored
    plain = gb.TorchBasedFeature(data.x)
    for source in (data.x, file, file.rows()):
        feature = Feature(source)
        assert isinstance(feature, gb.Feature) and feature.metadata() == {}
        assert feature.size() == plain.size()
        assert torch.equal(feature.read(), plain.read())
        for ids in ([], [7], [5, 59, 5, 0]):
            ids = torch.tensor(ids, dtype=dtype)
            assert torch.equal(feature.read(ids), plain.read(ids))
    store = feature_store(file, "x", node_type="page")
    assert store.keys() == [("node", "page", "x")]
    assert torch.equal(store.read("node", "page", "x", torch.tensor([3])), data.x[[3]])


@needs_graphbolt
def test_what_a_feature_cannot_do_is_named(stored):
    from thinwire.torch.graph.graphbolt import Feature, sampling_graph

    data, file = stored
    feature = Feature(file)
    with pytest.raises(InvalidError, match="2 rows of a feature cannot be updated"):
        feature.update(torch.zeros(2, 5), torch.tensor([0, 1]))
    with pytest.raises(InvalidError, match=r"row 60, expected rows of 0\.\.60"):
        feature.read(torch.tensor([VERTICES]))
    with pytest.raises(InvalidError, match="ids is list, expected Tensor or None"):
        feature.read([1, 2])
    with pytest.raises(InvalidError, match=r"index of torch.bool, expected whole numbers"):
        feature.read(torch.ones(VERTICES, dtype=torch.bool))
    with pytest.raises(InvalidError, match='source is "x", expected SharedFeatures or StoredGraph'):
        Feature("x")
    with pytest.raises(InvalidError, match="graph is None, expected StoredGraph"):
        sampling_graph(None)
    with pytest.raises(InvalidError, match=r"x is \[60\], expected \[vertices, features\]"):
        Feature(data.x[:, 0])


@needs_graphbolt
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_graphbolt_have_edges_and_rows_of_the_graph(stored, workers):
    from thinwire.torch.graph.graphbolt import feature_store, sampling_graph

    data, file = stored
    graph = sampling_graph(file)
    assert (graph.total_num_nodes, graph.total_num_edges) == (VERTICES, EDGES)
    edges = set(map(tuple, data.edge_index.t().tolist()))
    heavy = set(map(tuple, data.edge_index.t()[1::2].tolist()))
    items = gb.ItemSet(torch.arange(VERTICES), names="seed_nodes")
    for names, expected in ((None, edges), ("edge_weight", heavy)):
        pipe = gb.ItemSampler(items, batch_size=16)
        pipe = pipe.sample_neighbor(graph, [4, 3], prob_name=names)
        pipe = pipe.fetch_feature(feature_store(file), node_feature_keys=["feat"])
        seeds = []
        for batch in gb.DataLoader(pipe, num_workers=workers):
            assert torch.equal(batch.node_features["feat"], data.x[batch.input_nodes])
            for block, hop in zip(batch.blocks, batch.sampled_subgraphs):
                source, destination = block.edges()
                vertices = hop.original_row_node_ids
                found = zip(vertices[source].tolist(), vertices[destination].tolist())
                assert set(found) <= expected
            seeds += batch.seed_nodes.tolist()
        assert seeds == list(range(VERTICES))


def train(path):
    """Trains GraphSAGE on a part's seeds, whose features both ranks have; returns the accuracy on all
    test vertices, the rows that were fetched, and a checksum of the model."""
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    from thinwire.torch.graph import SharedFeatures
    from thinwire.torch.graph.graphbolt import feature_store, sampling_graph

    class Sage(torch.nn.Module):
        def __init__(self, features, classes):
            super().__init__()
            self.first = dgl.nn.SAGEConv(features, 32, "mean")
            self.second = dgl.nn.SAGEConv(32, classes, "mean")

        def forward(self, blocks, x):
            return self.second(blocks[1], self.first(blocks[0], x).relu())

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    stored = StoredGraph(path)
    shared = SharedFeatures(stored.part(dist.get_rank()))
    whole = gb.TorchBasedFeature(stored.rows().read(torch.arange(stored.num_nodes)))
    graph, features = sampling_graph(stored), feature_store(shared)

    def loader(mask, shuffle):
        seeds = mask.nonzero().view(-1)
        items = gb.ItemSet((seeds, stored.y[seeds]), names=("seed_nodes", "labels"))
        options = {"batch_size": 64, "shuffle": shuffle, "drop_uneven_inputs": shuffle}
        pipe = gb.DistributedItemSampler(items, drop_last=shuffle, **options)
        pipe = pipe.sample_neighbor(graph, [10, 10])
        return gb.DataLoader(pipe.fetch_feature(features, node_feature_keys=["feat"]))

    model = DistributedDataParallel(Sage(stored.num_features, stored.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        for batch in loader(stored.train_mask, True):
            x = batch.node_features["feat"]
            assert torch.equal(x, whole.read(batch.input_nodes))
            optimizer.zero_grad()
            cross_entropy(model(batch.blocks, x), batch.labels).backward()
            optimizer.step()
    right = torch.zeros(2)
    with torch.no_grad():
        for batch in loader(stored.test_mask, False):
            guess = model.module(batch.blocks, batch.node_features["feat"]).argmax(1)
            right += torch.tensor([(guess == batch.labels).sum(), len(guess)])
    dist.all_reduce(right)
    dist.barrier()  # others may still ask for this rank's rows
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    return float(right[0] / right[1]), int(right[1]), shared.fetched, total


@needs_graphbolt
def test_ranks_train_by_graphbolt_on_features_that_they_share(ranks, command, tmp_path):
    size = ["--vertices", 4000, "--columns", 16, "--train", 0.5]
    command("graph", "generate", "blocks", *size, "--output", "b.graph")
    command("graph", "partition", "b.graph", "--parts", 2, "--output", "p.graph")
    path = command.folder / "p.graph"
    found = ranks(2, train, arguments=[str(path)])
    tested = int(StoredGraph(path).test_mask.sum())
    for accuracy, counted, fetched, _ in found:
        assert counted == tested and fetched > 0
        assert accuracy > 0.8, accuracy
    assert found[0][3] == found[1][3]
