"""Share of an epoch in which ranks wait for mini-batches, from no cache to all of the loader.

    bench/network.sh 4 1gbit $PYTHON bench/python/graph_epoch.py --hash hash.graph --metis metis.graph
    bench/network.sh 4 1gbit $PYTHON bench/python/graph_epoch.py --hash … --metis … --compute 5

Files are those of `thinwire graph partition`. A step is one of GraphSAGE on the batch, on this machine's
cores, or `--compute` milliseconds by a clock, as if a GPU computed; then all ranks sum their gradients.
`in memory` has all batches from the start, so what a pass takes beyond it is loading that nothing hides;
processor seconds are those of all ranks. Without overlap a batch's rows are read when the batch is needed;
only its sample is made ahead. `degree` is PaGraph's static cache: the rows that most edges of the rank's
own closure begin at, of those that other ranks have. `foreseen` is the loader's own.
"""

import argparse
import json
import queue
import statistics
import sys
import threading
import time
from types import SimpleNamespace

import graph_loading
import ranks
import torch
import torch.distributed as dist
from graph_peers import destinations
from graph_script import Sage
from torch.nn.functional import cross_entropy

from thinwire.torch.graph import Loader, StoredGraph

MODES = (
    ("in memory", "hash", None, False, None),
    ("hash, no cache", "hash", None, False, None),
    ("hash, degree", "hash", "degree", False, None),
    ("METIS, degree", "metis", "degree", False, None),
    ("METIS, degree, overlap", "metis", "degree", True, None),
    ("METIS, foreseen", "metis", "foreseen", True, None),
    ("METIS, foreseen, int8", "metis", "foreseen", True, "int8"),
)
CLASSES = 41
AHEAD = 2
"""Batches that wait for the training, as many as in the loader."""


class Static:
    """Rows of other ranks that a rank has from the start."""

    def __init__(self, graph, rows, kept):
        self.rows = rows
        self.place = torch.full((graph.num_nodes,), -1)
        self.place[kept] = torch.arange(len(kept))
        self.kept = rows.read(kept)

    def read(self, numbers):
        place = self.place[numbers]
        hits, misses = (place >= 0).nonzero().view(-1), (place < 0).nonzero().view(-1)
        out = torch.empty(len(numbers), *self.kept.shape[1:])
        out.index_copy_(0, hits, self.kept[place[hits]])
        return out.index_copy_(0, misses, self.rows.read(numbers[misses]))


def most_used(graph, hops, count):
    """Vertices of other ranks that most edges of the own closure begin at, at most `count`."""
    offsets, neighbors = graph.columns()
    ends = destinations(offsets)
    first, end = graph.bounds[dist.get_rank()], graph.bounds[dist.get_rank() + 1]
    reached = torch.zeros(graph.num_nodes, dtype=torch.bool)
    reached[first:end] = graph.train_mask[first:end]
    for _ in range(hops - 1):
        reached[neighbors[reached[ends]]] = True
    uses = torch.bincount(neighbors[reached[ends]], minlength=graph.num_nodes)
    uses[first:end] = 0
    order = uses.argsort(descending=True, stable=True)[:count]
    return order[uses[order] > 0]


class Batches:
    """Passes over the batches of a mode."""

    def __init__(self, options, parts, cache, overlap, format):
        graph = StoredGraph(getattr(options, parts))
        self.features = graph_loading.shared(graph, format)
        self.width = self.features.rows.source.width
        self.overlap = overlap
        fan_outs = [int(number) for number in options.fan_outs.split(",")]
        chosen = {"shuffle": True, "threads": 1, "bounds": graph.bounds}
        if cache == "foreseen":
            bytes_max = int(options.share * graph.num_nodes * (self.width + 32))
            chosen |= {"features": self.features, "cache": bytes_max}
            self.rows, data = None, graph
        else:
            self.rows, data = self.features.rows, topology_of(graph)
        if cache == "degree":
            count = int(options.share * graph.num_nodes)
            self.rows = Static(graph, self.rows, most_used(graph, len(fan_outs), count))
        self.loader = Loader(data, fan_outs, options.batch, graph.train_mask, **chosen)

    def __iter__(self):
        if self.rows is None:
            return iter(self.loader)
        return ahead(self._read()) if self.overlap else self._read()

    def _read(self):
        for batch in self.loader:
            batch.x = self.rows.read(batch.n_id)
            yield batch


def topology_of(graph):
    """The graph without features."""
    offsets, neighbors = graph.columns()
    edge_index = torch.stack([neighbors, destinations(offsets)])
    return SimpleNamespace(edge_index=edge_index, num_nodes=graph.num_nodes)


def ahead(batches):
    """The same batches, which a thread reads ahead."""
    read = queue.Queue(AHEAD)

    def fill():
        try:
            for batch in batches:
                read.put(batch)
            read.put(None)
        except BaseException as error:
            read.put(error)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := read.get()) is not None:
        if isinstance(batch, BaseException):
            raise batch
        yield batch


class Training:
    """Steps that end with the sum of all ranks' gradients."""

    def __init__(self, features, options):
        torch.manual_seed(0)
        self.compute = options.compute
        self.model = Sage(features, options.hidden, CLASSES)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def step(self, batch):
        if self.compute is None:
            self.optimizer.zero_grad(set_to_none=False)
            out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.n_id[: batch.batch_size] % CLASSES).backward()
        else:
            time.sleep(self.compute / 1000)
        gradients = [parameter.grad for parameter in self.model.parameters()]
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, mean in zip(gradients, flat.split([it.numel() for it in gradients])):
            gradient.copy_(mean.view_as(gradient))
        self.optimizer.step()


def run(batches, training, passes):
    """Per pass: seconds of the slowest rank, those in which the mean rank waited for batches, and
    processor seconds of all ranks."""
    dist.barrier()
    start, used, waited = time.perf_counter(), time.process_time(), 0.0
    for _ in range(passes):
        it = iter(batches)
        while True:
            asked = time.perf_counter()
            batch = next(it, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            training.step(batch)
    spent = torch.tensor(time.perf_counter() - start)
    others = torch.tensor([waited / dist.get_world_size(), time.process_time() - used])
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    dist.all_reduce(others)
    return float(spent) / passes, *(others / passes).tolist()


def measure(mode, options):
    """Figures of a mode."""
    batches = Batches(options, *mode[1:])
    training = Training(batches.features.rows.like.shape[1], options)
    kept = list(batches) if mode[0] == "in memory" else batches
    run(kept, training, 1)
    before = batches.features.fetched
    spent, waited, used = run(kept, training, options.passes)
    rows = torch.tensor((batches.features.fetched - before) / options.passes)
    dist.all_reduce(rows)
    return spent, waited, used, float(rows), float(rows) * batches.width / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hash", required=True)
    parser.add_argument("--metis", required=True)
    parser.add_argument("--compute", type=float, help="milliseconds per step; a real model without")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--fan-outs", default="25,10")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.4, help="of all rows that a cache holds")
    options = parser.parse_args()
    with ranks.group():
        found = {mode: [] for mode in MODES}
        for _ in range(options.rounds):
            for mode, figures in found.items():
                figures.append(measure(mode, options))
                if dist.get_rank() == 0:
                    print(f"{mode[0]}: {figures[-1]}", file=sys.stderr)
                dist.barrier()
        for (mode, *_), figures in found.items():
            spent, waited, used, rows, megabytes = map(statistics.median, zip(*figures))
            alone = statistics.median(it[0] for it in found[MODES[0]])
            told = {"mode": mode, "pass_s": round(spent, 3), "waits_s": round(waited, 3)}
            told |= {"share": round(waited / spent, 3), "loading_s": round(spent - alone, 3)}
            told |= {"cpu_s": round(used, 3), "remote_rows": round(rows)}
            told |= {"remote_mb": round(megabytes, 2)}
            if dist.get_rank() == 0:
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
