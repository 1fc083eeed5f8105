"""Loading of mini-batches beside PyG, DGL and GraphBolt: edges per second of processor time, and memory.

    thinwire graph generate rmat --scale 20 --output rmat.graph
    $PYTHON bench/python/graph_peers.py rmat.graph

Every peer loads the same seeds in a process of its own, in turns, on one thread and without workers, in
the `--passes` after the first one, of which small graphs need many. A step has what a training reads:
features and the edges of all layers. Features are in memory, or in the file for peers with `-file`;
`--columns 0` is sampling alone. DGL and GraphBolt expand every vertex in every hop, as `thinwire-blocks`
does, so batches of the others have fewer edges. DGL's features are read by `index_select`; GraphBolt's
`DataLoader` reads features of its own, or of Thinwire with `-thinwire`. Memory is what the process has
grown by, and the file that it maps, by the bytes of compressed sparse columns (8 bytes per vertex, 4 per
edge) and features. PyG needs pyg-lib or torch-sparse to sample, DGL 2.1 and its GraphBolt need PyTorch 2.2;
a peer that cannot be imported is skipped in one line.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from thinwire.torch.graph import Loader, StoredGraph, save

PEERS = (
    "thinwire",
    "thinwire-file",
    "thinwire-blocks",
    "pyg",
    "dgl",
    "graphbolt",
    "graphbolt-thinwire",
    "graphbolt-thinwire-file",
)


def resident(field):
    """Bytes that a line of /proc/self/status has."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise LookupError(field)


def prepare(source, columns, path):
    """Writes the graph with random features of float32, if any, and its seeds that have in-neighbours."""
    graph = StoredGraph(source)
    offsets, neighbors = graph.columns()
    torch.manual_seed(1)
    data = SimpleNamespace(
        num_nodes=graph.num_nodes,
        edge_index=torch.stack([neighbors, destinations(offsets)]),
        train_mask=graph.train_mask & (offsets.diff() > 0),
    )
    if columns:
        data.x = torch.rand(graph.num_nodes, columns)
    save(data, path)


def destinations(offsets):
    """The end of every edge of compressed sparse columns."""
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())


def features_of(graph):
    """The features in memory, if there are any."""
    return graph.rows().read(torch.arange(graph.num_nodes)) if graph.num_features else None


def loader_of(peer, graph, seeds, options):
    """The loader of a peer."""
    if peer.startswith("graphbolt"):
        return graphbolt_loader(peer, graph, seeds, options)
    if peer == "dgl":
        return DglLoader(graph, seeds, options)
    if peer == "thinwire-file":
        return Loader(graph, options.fan_outs, options.batch, seeds, threads=1)
    offsets, neighbors = graph.columns()
    edge_index = torch.stack([neighbors, destinations(offsets)])
    x = features_of(graph)
    if peer in ("thinwire", "thinwire-blocks"):
        data = SimpleNamespace(x=x, edge_index=edge_index, num_nodes=graph.num_nodes)
        layout = "edges" if peer == "thinwire" else "blocks"
        return Loader(data, options.fan_outs, options.batch, seeds, threads=1, layout=layout)
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    data = Data(x=x, edge_index=edge_index, num_nodes=graph.num_nodes)
    chosen = {"batch_size": options.batch, "input_nodes": seeds, "is_sorted": True}
    return NeighborLoader(data, options.fan_outs, **chosen)


class DglLoader:
    """DGL's, and a lookup of features; its fan-outs begin at the network's input."""

    def __init__(self, graph, seeds, options):
        import dgl

        sampler = dgl.dataloading.NeighborSampler(options.fan_outs[::-1])
        columns = ("csc", (*graph.columns(), torch.arange(0)))
        whole = dgl.graph(columns, num_nodes=graph.num_nodes)
        self.loader = dgl.dataloading.DataLoader(whole, seeds, sampler, batch_size=options.batch)
        self.x = features_of(graph)

    def __iter__(self):
        for ids, _, blocks in self.loader:
            yield None if self.x is None else self.x.index_select(0, ids), blocks


def graphbolt_loader(peer, graph, seeds, options):
    """GraphBolt's, with features of the peer; its fan-outs begin at the network's input."""
    from dgl import graphbolt

    from thinwire.torch.graph.graphbolt import Feature, sampling_graph

    items = graphbolt.ItemSet(seeds, names="seed_nodes")
    pipe = graphbolt.ItemSampler(items, batch_size=options.batch)
    pipe = pipe.sample_neighbor(sampling_graph(graph), options.fan_outs[::-1])
    if not graph.num_features:
        return graphbolt.DataLoader(pipe)
    if peer == "graphbolt-thinwire-file":
        feature = Feature(graph)
    else:
        x = features_of(graph)
        feature = graphbolt.TorchBasedFeature(x) if peer == "graphbolt" else Feature(x)
    store = graphbolt.BasicFeatureStore({("node", None, "feat"): feature})
    return graphbolt.DataLoader(pipe.fetch_feature(store, node_feature_keys=["feat"]))


def edges_of(batch):
    """The number of edges of a batch, whose tensors are made by then."""
    if isinstance(batch, tuple):
        return sum(block.num_edges() for block in batch[1])
    if hasattr(batch, "sampled_subgraphs"):
        return sum(len(hop.sampled_csc.indices) for hop in batch.sampled_subgraphs)
    if batch.edge_index is None:
        return sum(block.edge_index.shape[1] for block in batch.blocks)
    return batch.edge_index.shape[1]


def load(options):
    """Figures of one peer, as JSON."""
    torch.set_num_threads(1)
    before = resident("RssAnon")
    graph = StoredGraph(options.graph)
    seeds = graph.train_mask.nonzero().view(-1)[: options.batch * options.batches]
    raw = 8 * graph.num_nodes + 4 * graph.num_edges + 4 * graph.num_nodes * graph.num_features
    loader = loader_of(options.only, graph, seeds, options)
    for _ in loader:
        pass
    # The last batch of this pass.
    del _
    used, start, edges, most = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), 0, 0
    for _ in range(options.passes):
        for batch in loader:
            edges += edges_of(batch)
            for name in options.read.split(",") if options.read else ():
                getattr(batch, name)
        most = max(most, resident("RssAnon"))
    wall, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    spent = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    mapped = os.path.getsize(options.graph) if options.only.endswith("-file") else 0
    seen = len(seeds) * options.passes
    figures = {"peer": options.only, "seeds": len(seeds), "edges": round(edges / options.passes)}
    figures |= {
        "edges_per_cpu_s": round(edges / spent),
        "seeds_per_cpu_s": round(seen / spent),
        "seeds_per_s": round(seen / wall),
    }
    figures |= {"memory_by_raw": round((most - before + mapped) / raw, 3)}
    print(json.dumps(figures), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph")
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--fan-outs", default="15,10,5")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--read", default="", help="tensors read too, such as n_id,e_id")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(PEERS), help="names, in their order")
    parser.add_argument("--only", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.peers.split(",")) - set(PEERS):
        parser.error(f"peers {', '.join(sorted(unknown))}, expected some of {', '.join(PEERS)}")
    if options.only:
        options.fan_outs = [int(number) for number in options.fan_outs.split(",")]
        load(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        full = os.path.join(folder, "full.graph")
        prepare(options.graph, options.columns, full)
        command = [sys.executable, __file__, full, "--fan-outs", options.fan_outs]
        command += ["--batch", str(options.batch), "--batches", str(options.batches)]
        command += ["--passes", str(options.passes), "--read", options.read, "--only"]
        for peer in options.peers.split(",") * options.rounds:
            ended = subprocess.run([*command, peer], stderr=subprocess.PIPE, text=True, check=False)
            if ended.returncode != 0:
                print(f"skipped {peer}: {ended.stderr.strip().splitlines()[-1]}", file=sys.stderr)


if __name__ == "__main__":
    main()
