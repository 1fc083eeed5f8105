"""Time to load a pass over a graph in parts, whose features the ranks share.

    bench/network.sh 4 1gbit $PYTHON bench/python/graph_loading.py --hash hash.graph --metis metis.graph

Files are those of `thinwire graph partition`. Each mode runs one pass that fills caches, and `--passes`
that count. A step waits for the slowest rank, as DDP's gradients make it wait.
"""

import argparse
import json
import time

import ranks
import torch
import torch.distributed as dist

from thinwire.torch.graph import Loader, SharedFeatures, StoredGraph

MODES = (
    ("hash, no cache", "hash", 0),
    ("hash, cache", "hash", 1),
    ("METIS, no cache", "metis", 0),
    ("METIS, cache", "metis", 1),
)


def load(loader, features, passes):
    """Seconds and rows of other ranks for some passes over the batches."""
    dist.barrier()
    start, fetched = time.perf_counter(), features.fetched
    for _ in range(passes):
        for _ in loader:
            dist.barrier()
    spent = torch.tensor(time.perf_counter() - start)
    rows = torch.tensor(features.fetched - fetched)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    dist.all_reduce(rows)
    return float(spent), int(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hash", required=True)
    parser.add_argument("--metis", required=True)
    parser.add_argument("--fan-outs", default="25,10")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.4, help="of all rows that a cache holds")
    options = parser.parse_args()
    with ranks.group():
        for mode, method, cached in MODES:
            graph = StoredGraph(getattr(options, method))
            width = 4 * graph.num_features
            features = SharedFeatures(graph.part(dist.get_rank()))
            bytes_max = int(options.share * graph.num_nodes * (width + 32))
            loader = Loader(
                graph,
                [int(number) for number in options.fan_outs.split(",")],
                options.batch,
                graph.train_mask,
                shuffle=True,
                threads=1,
                bounds=graph.bounds,
                features=features,
                cache=bytes_max if cached else None,
            )
            load(loader, features, 1)
            spent, rows = (it / options.passes for it in load(loader, features, options.passes))
            if dist.get_rank() == 0:
                figures = {"mode": mode, "batches": len(loader), "pass_s": round(spent, 3)}
                figures |= {"remote_rows": round(rows), "remote_mb": round(rows * width / 1e6, 2)}
                print(json.dumps(figures), flush=True)
            dist.barrier()


if __name__ == "__main__":
    main()
