"""`Loader` beside PyG's `NeighborLoader`, under options that both have, on 1 and 3 ranks.

Passes have the seeds that PyG's have, divided over the ranks; PyG's batch of the same seeds has the same
attributes with the same shapes. Where neither pyg-lib nor torch-sparse is installed, which sample for PyG,
a sampler in Python takes their place; everything else is PyG's own.
"""

import itertools
import math
import random

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

from thinwire.torch.graph import Loader  # noqa: E402

pytestmark = pytest.mark.needs("torch")

VERTICES, EDGES, SEEDS = 90, 500, 53
FAN_OUTS = ([-1, -1], [2], [3, 2], [200, -1])
BATCHES = (9, 17, 60)


def make_data():
    from torch_geometric.data import Data

    made = torch.Generator().manual_seed(0)
    # Vertices from 80 on have no in-neighbours.
    ends = [torch.randint(most, (EDGES,), generator=made) for most in (VERTICES, 80)]
    return Data(
        x=torch.randn(VERTICES, 4, generator=made),
        edge_index=torch.stack(ends),
        y=torch.arange(VERTICES),
        edge_attr=torch.randn(EDGES, 3, generator=made),
        train_mask=torch.arange(VERTICES) % 2 == 0,
        name="whole graph",
        scale=torch.tensor(2.0),
    )


def inputs():
    """Seeds as scripts give them, by name."""
    import numpy

    order = torch.randperm(VERTICES, generator=torch.Generator().manual_seed(1))[:SEEDS]
    mask = torch.zeros(VERTICES, dtype=torch.bool)
    mask[order] = True
    kinds = {"all": None, "tensor": order, "mask": mask, "list": order.tolist()}
    return kinds | {"range": range(7, 7 + SEEDS), "array": order.numpy().astype(numpy.int32)}


def pyg_loader(data, fan_outs, replace, **options):
    """PyG's loader, with the stand-in for its library where there is none."""
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.sampler import NeighborSampler, SamplerOutput
    from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

    class Sampler(NeighborSampler):
        def _sample(self, seed, *_, **__):
            nodes, rows, columns, edges = seed.tolist(), [], [], []
            place = {vertex: number for number, vertex in enumerate(nodes)}
            first = 0
            for fan_out in fan_outs:
                begin, first = first, len(nodes)
                for number in range(begin, first):
                    start, end = self.colptr[nodes[number] :][:2].tolist()
                    found = range(start, end)
                    if replace and fan_out >= 0 and found:
                        found = random.choices(found, k=fan_out)
                    elif 0 <= fan_out < len(found):
                        found = random.sample(found, fan_out)
                    for edge in found:
                        source = int(self.row[edge])
                        if source not in place:
                            place[source] = len(nodes)
                            nodes.append(source)
                        rows.append(place[source])
                        columns.append(number)
                        edges.append(edge)
            lists = (
                torch.tensor(each, dtype=torch.int64) for each in (nodes, rows, columns, edges)
            )
            return SamplerOutput(*lists)

    sampler = None
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        sampler = Sampler(data, fan_outs, replace=replace)
    options |= {"replace": replace, "neighbor_sampler": sampler}
    return NeighborLoader(data, fan_outs, **options)


OF_ROWS = ("x", "y", "train_mask", "n_id", "e_id", "edge_attr", "edge_index")
"""Tensors whose lengths depend on what is drawn."""
LISTS = ("num_nodes", "num_seeds", "num_sampled_nodes", "num_sampled_edges", "batch", "seed_time")
"""Attributes that only one of both has, or that depend on the library behind PyG."""


def about(batch, is_drawn):
    """What is equal in batches of the same seeds: dtypes and shapes of tensors, values of all else."""
    found = {}
    for name in set(batch.keys()) - set(LISTS):
        value = batch[name]
        if torch.is_tensor(value):
            is_known = not is_drawn or name not in OF_ROWS
            value = str(value.dtype), list(value.shape) if is_known else value.dim()
        found[name] = value
    numbers = [] if is_drawn else [sorted(batch[name].tolist()) for name in ("n_id", "e_id")]
    of_seeds = int((batch.edge_index[1] < batch.batch_size).sum())
    return found, numbers, f"{of_seeds} edges of seeds", batch.input_id.tolist()


def difference(case, data, world):
    """What is wrong under some options, and the seeds of passes and of PyG's."""
    (_, nodes), fan_outs, batch_size, shuffle, drop_last, replace = case
    own = {"shuffle": shuffle, "drop_last": drop_last, "batch_size": batch_size}
    alike = {"directed": True, "subgraph_type": "directional", "num_workers": 0}
    ours = Loader(data, fan_outs, input_nodes=nodes, replace=replace, seed=3, **own, **alike)
    theirs = pyg_loader(data, fan_outs, replace, input_nodes=nodes, **own)
    all_seeds = theirs.input_data.node
    wrong, passes = [], []
    part = len(all_seeds) / world / batch_size
    steps = math.floor(part) if drop_last else math.ceil(part)
    if [len(ours), len(ours.dataset)] != [steps, len(theirs.dataset)]:
        wrong.append(f"{len(ours)} batches of {len(ours.dataset)} seeds, expected {steps}")
    if world == 1 and len(ours) != len(theirs):
        wrong.append(f"{len(ours)} batches, PyG has {len(theirs)}")
    is_drawn = replace or any(0 <= fan_out < 200 for fan_out in fan_outs)
    for number in range(1 + shuffle):
        passes.append([])
        for batch in ours:
            seeds = batch.n_id[: batch.batch_size].tolist()
            passes[number] += seeds
            places = [all_seeds.tolist().index(seed) for seed in seeds]
            found, expected = (about(it, is_drawn) for it in (batch, theirs(places)))
            if found != expected:
                wrong.append(f"{found} beside PyG's {expected}")
    return wrong, passes, all_seeds.tolist()


def cases():
    """Combinations of options: all of those that divide seeds, and those of draws in turns."""
    drawn = itertools.cycle(itertools.product(FAN_OUTS, (False, True)))
    for nodes, batch_size, shuffle, drop_last in itertools.product(
        inputs().items(), BATCHES, (False, True), (False, True)
    ):
        if drop_last and batch_size * 3 > SEEDS:
            continue  # On three ranks there is no full batch.
        fan_outs, replace = next(drawn)
        yield nodes, fan_outs, batch_size, shuffle, drop_last, replace


def of_ranks():
    """What is wrong in each case, and its passes."""
    import warnings

    import torch.distributed as dist

    warnings.simplefilter("ignore")  # of PyG, about libraries
    dist.init_process_group("gloo")
    data, world = make_data(), dist.get_world_size()
    found = [[str(case), *difference(case, data, world)] for case in cases()]
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("world", [1, 3])
def test_passes_and_batches_are_those_of_pyg_s_loader(ranks, world):
    pytest.importorskip("torch_geometric", reason="pip install torch-geometric")
    every = ranks(world, of_ranks)
    assert len(every[0]) >= 48
    for case, parts in zip(cases(), zip(*every)):
        options, _, _, expected = parts[0]
        assert not [text for part in parts for text in part[1]], options
        _, _, batch_size, shuffle, drop_last, _ = case
        full = len(expected) // (batch_size * world) * batch_size * world
        passes = [sum((part[2][number] for part in parts), []) for number in range(1 + shuffle)]
        for seen in passes:
            assert len(seen) == (full if drop_last else len(expected)), options
            assert len(set(seen)) == len(seen) and set(seen) <= set(expected), options
        if world == 1 and not shuffle:
            assert passes[0] == expected[: len(passes[0])], options
        assert not shuffle or passes[0] != passes[1], options
