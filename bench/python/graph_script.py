"""GraphSAGE under DDP, as scripts for PyG train it, on batches of PyG's loader or of Thinwire's.

    $PYTHON bench/python/graph_script.py --save facebook.graph
    thinwire graph partition facebook.graph --parts 4 --method metis --output parts.graph
    bench/network.sh 4 1gbit $PYTHON bench/python/graph_script.py parts.graph

`pyg`: `NeighborLoader`, every rank with all features in memory. `thinwire`: the same data, and only the
line of the loader differs. `parts`: every rank with the features of its own part, and a cache. Accuracy is
that of the test vertices with all their neighbours. Seconds are those of the slowest rank, processor
seconds those of all ranks together, and bytes what a rank receives, gradients and rows; all per pass, after
the first one. Memory is the largest growth of a rank without the pages of files; measure it with one mode
alone, `--modes parts --seeds 1`. PyG needs pyg-lib or torch-sparse to sample, and is skipped in one line
without them.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import graph_accuracy
import ranks
import torch
import torch.distributed as dist
from graph_peers import destinations
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import thinwire.torch
from thinwire.torch.graph import Loader, SharedFeatures, StoredGraph, save

MODES = ("pyg", "thinwire", "parts")


class Sage(torch.nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first, self.second = SAGEConv(features, hidden), SAGEConv(hidden, classes)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def replicated(graph):
    """All of a graph in memory."""
    offsets, neighbors = graph.columns()
    edge_index = torch.stack([neighbors, destinations(offsets)])
    x = graph.rows().read(torch.arange(graph.num_nodes))
    masks = {"train_mask": graph.train_mask, "test_mask": graph.test_mask}
    return Data(x=x, edge_index=edge_index, y=graph.y, **masks)


def loader_of(mode, graph, features, seed, options):
    """The loader of a mode: the one line that differs."""
    fan_outs, batch = options.fan_outs, options.batch
    if mode == "parts":
        return Loader(
            graph,
            fan_outs,
            batch,
            graph.train_mask,
            shuffle=True,
            seed=seed,
            bounds=graph.bounds,
            features=features,
            cache=options.cache,
            threads=1,
        )
    data = replicated(graph)
    train = data.train_mask.nonzero().view(-1)
    share = len(train) // dist.get_world_size()
    split = train[dist.get_rank() * share :][:share]
    if mode == "pyg":
        return NeighborLoader(
            data,
            fan_outs,
            batch_size=batch,
            input_nodes=split,
            shuffle=True,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
        )
    return Loader(data, fan_outs, batch, split, shuffle=True, seed=seed, threads=1, rank=0, world=1)


def train(mode, graph, seed, options):
    """Figures of one training, on all ranks."""
    before = resident()
    torch.manual_seed(seed)
    features = SharedFeatures(graph.part(dist.get_rank())) if mode == "parts" else None
    loader = loader_of(mode, graph, features, seed, options)
    model = Sage(graph.num_features, options.hidden, graph.num_classes)
    model = DistributedDataParallel(model)
    if options.codec:
        model.register_comm_hook(*thinwire.torch.hook(codec=options.codec))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seconds, used, received, memory = [], [], [], 0.0
    for _ in range(options.passes):
        dist.barrier()
        start, used_before, bytes_before = time.perf_counter(), time.process_time(), arrived()
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        used.append(time.process_time() - used_before)
        received.append(arrived() - bytes_before)
        memory = max(memory, resident() - before)
    mean_mb = statistics.mean(received[1:]) / 1e6
    most = torch.tensor([statistics.median(seconds[1:]), mean_mb, memory / 1e6])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    cpu = torch.tensor(statistics.median(used[1:]))
    dist.all_reduce(cpu)
    model.eval()
    reached = accuracy(model.module, graph) if dist.get_rank() == 0 else 0.0
    return [*most.tolist(), cpu.item(), reached]


def accuracy(model, graph):
    """Share of the test vertices in %, with all their neighbours."""
    data = replicated(graph)
    with torch.no_grad():
        right = model(data.x, data.edge_index).argmax(1) == data.y
    return 100 * right[data.test_mask].float().mean().item()


def resident():
    """Bytes of this process that are no pages of a file, and of its workers."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = [
        line
        for process in ("self", *children)
        for line in Path(f"/proc/{process}/status").read_text().splitlines()
    ]
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def arrived():
    """Bytes that this rank's interface has received."""
    name = os.environ.get("NETWORK_INTERFACE", "lo") + ":"
    lines = (line.split() for line in Path("/proc/self/net/dev").read_text().splitlines())
    return next(int(line[1]) for line in lines if line[0] == name)


def compare(options):
    """Prints the figures of each mode: medians over the seeds, and the mean of accuracies."""
    graph = StoredGraph(options.graph)
    modes = options.modes
    if "pyg" in modes and not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        print("skipped pyg: neither pyg-lib nor torch-sparse is installed", file=sys.stderr)
        modes = [mode for mode in modes if mode != "pyg"]
    found = {mode: [] for mode in modes}
    for seed in range(options.seeds):
        for mode, figures in found.items():
            figures.append(train(mode, graph, seed, options))
            if dist.get_rank() == 0:
                print(f"{mode}, seed {seed}: {figures[-1]}", file=sys.stderr)
            dist.barrier()
    for mode, figures in found.items():
        seconds, received, memory, cpu, accuracies = zip(*figures)
        told = {
            "mode": mode,
            "seeds": options.seeds,
            "pass_s": round(statistics.median(seconds), 3),
        }
        told |= {"spread_s": round(max(seconds) - min(seconds), 3)}
        told |= {"cpu_s": round(statistics.median(cpu), 3)}
        told |= {"received_mb": round(statistics.median(received), 2)}
        told |= {"memory_mb": round(max(memory)), "accuracy": round(statistics.mean(accuracies), 2)}
        if options.seeds > 1:
            told |= {"deviation": round(statistics.stdev(accuracies), 2)}
        if dist.get_rank() == 0:
            print(json.dumps(told), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", nargs="?", help="with a part per rank")
    parser.add_argument("--save", metavar="FILE", help="only writes musae-facebook to a file")
    parser.add_argument("--modes", type=lambda text: text.split(","), default=MODES)
    parser.add_argument("--fan-outs", default="25,10")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", default="64MB")
    parser.add_argument("--workers", type=int, default=0, help="processes of PyG's loader per rank")
    parser.add_argument("--codec", help="codec of gradients; none leaves DDP to gloo")
    options = parser.parse_args()
    options.fan_outs = [int(number) for number in options.fan_outs.split(",")]
    if options.save:
        save(graph_accuracy.read_facebook(), options.save)
        return
    with ranks.group():
        compare(options)


if __name__ == "__main__":
    main()
