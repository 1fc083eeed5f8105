"""Tensors of a graph's batch are made when they are read, and whoever reads them sees none that is not."""

import copy
import gc
import pickle
import weakref

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

import thinwire  # noqa: E402
import thinwire.torch.graph.loader as module  # noqa: E402
from thinwire.torch.graph import Loader  # noqa: E402
from torch_models import holder  # noqa: E402

pytestmark = pytest.mark.needs("torch")

VERTICES, EDGES = 60, 400
OWN = {"n_id", "e_id", "input_id"}


def graph(kind):
    random = torch.Generator().manual_seed(0)
    return holder(kind)(
        edge_index=torch.randint(VERTICES, (2, EDGES), generator=random),
        x=torch.randn(VERTICES, 4, generator=random),
        y=torch.arange(VERTICES),
        edge_attr=torch.arange(EDGES),
    )


def first(data, **options):
    """The first batch, of a loader that is gone."""
    return next(iter(Loader(data, [3, 2], 10, shuffle=True, **options)))


def tensors(attributes):
    """What is compared of a batch: numbers of tensors by name."""
    return {name: value.tolist() for name, value in attributes if torch.is_tensor(value)}


READERS = {
    "attributes": lambda batch: [(name, getattr(batch, name)) for name in batch.keys()],  # noqa: SIM118
    "to": lambda batch: readers("attributes", batch.to("cpu")),
    "clone": lambda batch: readers("attributes", batch.clone()),
    "copy": lambda batch: readers("attributes", copy.copy(batch)),
    "copy of a copy": lambda batch: readers("attributes", copy.copy(copy.copy(batch))),
    "deepcopy": lambda batch: readers("attributes", copy.deepcopy(batch)),
    "pickle": lambda batch: readers("attributes", pickle.loads(pickle.dumps(batch))),
    "vars": lambda batch: dict(entries(batch)).items(),
    "keywords": lambda batch: dict(**entries(batch)).items(),
    "items": lambda batch: entries(batch).items(),
    "values": lambda batch: zip(entries(batch), entries(batch).values()),
    "get": lambda batch: [(name, entries(batch).get(name)) for name in entries(batch)],
    "pop": lambda batch: [(name, entries(batch).pop(name)) for name in list(entries(batch))],
    "merged": lambda batch: ({} | entries(batch)).items(),
    "updated": lambda batch: updated(entries(batch)).items(),
}


def readers(name, batch):
    return READERS[name](batch)


def entries(batch):
    return batch.to_dict() if hasattr(batch, "to_dict") else vars(batch)


def updated(attributes):
    found = {}
    found.update(attributes)
    return found


@pytest.mark.parametrize("kind", ["plain", "pyg"])
def test_every_reader_sees_the_values(kind):
    data = graph(kind)
    right = tensors(readers("attributes", first(data)))
    assert set(right) == OWN | {"edge_index", "x", "y", "edge_attr"}
    assert right["y"] == right["n_id"] and right["edge_attr"] == right["e_id"]
    ends = data.edge_index[:, right["e_id"]]
    assert torch.equal(ends, torch.tensor(right["n_id"])[torch.tensor(right["edge_index"])])
    for name, read in READERS.items():
        batch = first(data)
        gc.collect()
        assert tensors(read(batch)) == right, name
        if name != "pop":
            assert "Later" not in repr(batch) and tensors(READERS["attributes"](batch)) == right


@pytest.mark.parametrize("kind", ["plain", "pyg"])
def test_what_is_not_read_is_not_made(kind, monkeypatch):
    made = []
    for name in ("vertices_of", "positions_of"):
        make = getattr(module, name)
        monkeypatch.setattr(module, name, lambda batch, it=make: (made.append(it), it(batch))[1])
    data = graph(kind)
    for batch in Loader(data, [3, 2], 10):
        assert batch.edge_index.max() < len(batch.x) == batch.num_nodes
        assert copy.copy(batch).batch_size == 10
    assert not made
    for layout in ("edges", "blocks"):
        batch = first(data, layout=layout)
        numbers = [batch.e_id.tolist() for _ in range(2)][0]
        assert len(made) == 1, "e_id is made once, and n_id not for it"
        if layout == "blocks":
            assert sum([block.e_id.tolist() for block in batch.blocks[::-1]], []) == numbers
            (index, e_id, size), block = batch.blocks[0], batch.blocks[0]
            assert index is block.edge_index and e_id is block.e_id and size == block.size
            assert len(block) == 3 and block[0] is index and block[1] is e_id
            assert block[1:][0] is e_id and "Later" not in repr(block)
            again = pickle.loads(pickle.dumps(batch)).blocks[0]
            assert torch.equal(again.e_id, e_id) and again.size == size
            moved = first(data, layout=layout).to("meta").blocks[0]
            assert {moved.edge_index.device.type, moved.e_id.device.type} == {"meta"}
        made.clear()


def test_attributes_that_are_set_replace_those_to_be_made():
    for kind in ("plain", "pyg"):
        batch = first(graph(kind))
        batch.n_id, batch.more = torch.zeros(1), 3
        assert batch.y.tolist() == first(graph(kind)).n_id.tolist()
        assert batch.n_id.tolist() == [0.0] and batch.to("cpu").more == 3
        del batch.e_id
        assert "e_id" not in batch.keys() and not hasattr(batch, "e_id")  # noqa: SIM118


@pytest.mark.parametrize("kind", ["plain", "pyg"])
def test_a_change_of_the_graph_is_no_part_of_a_batch_that_was_drawn(kind):
    for layout in ("edges", "blocks"):
        data = graph(kind)
        before, batch = first(data, layout=layout), first(data, layout=layout)
        right = before.y.tolist()
        data.y += 1
        assert before.y.tolist() == right, "what was read is kept"
        for read in (lambda batch: batch.y, lambda batch: batch.to("cpu")):
            with pytest.raises(thinwire.InvalidError, match=r"y was changed in place 1 times"):
                read(batch)
        assert first(data, layout=layout).y.tolist() == [each + 1 for each in right]
        data.y = data.y + 1  # another tensor, of which the batch knows nothing
        assert batch.edge_attr.tolist() == batch.e_id.tolist()
    with torch.inference_mode():
        batch = first(graph(kind))
        assert torch.equal(batch.y, batch.n_id)


@pytest.mark.parametrize("kind", ["plain", "pyg"])
def test_a_batch_does_not_keep_its_loader(kind):
    for layout in ("edges", "blocks"):
        loader = Loader(graph(kind), [3, 2], 10, layout=layout)
        batch, seen = next(iter(loader)), weakref.ref(loader)
        del loader
        gc.collect()
        assert seen() is None and len(batch.e_id) == sum(batch.num_sampled_edges)
        assert batch.input_id.tolist() == list(range(10))
