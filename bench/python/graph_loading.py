"""Time to load a pass over a graph in parts, whose features the ranks share.

    bench/network.sh 4 1gbit $PYTHON bench/python/graph_loading.py --hash hash.graph --metis metis.graph

Files are those of `thinwire graph partition`. Each mode runs one pass that fills caches, and `--passes`
that count. A step waits for the slowest rank, as DDP's gradients make it wait. With `--predict` the
bytes per pass, the first one included, stand beside those that `thinwire graph partition` predicts for the
graph from which the parts were made.
"""

import argparse
import json
import subprocess
import time

import ranks
import torch
import torch.distributed as dist

from thinwire.torch.graph import Loader, SharedFeatures, StoredGraph

MODES = (
    ("hash, no cache", "hash", False, None),
    ("hash, no cache, int8", "hash", False, "int8"),
    ("hash, cache", "hash", True, None),
    ("hash, cache, int8", "hash", True, "int8"),
    ("METIS, no cache", "metis", False, None),
    ("METIS, cache", "metis", True, None),
    ("METIS, cache, int8", "metis", True, "int8"),
)
REQUEST_BYTES = 8
"""Bytes that request a row."""


def shared(graph, format):
    """The features of this rank's part, in the format of the file or another."""
    part = graph.part(dist.get_rank())
    if format is not None:
        part = part.read(torch.arange(part.source.rows))
    return SharedFeatures(part, codec=format)


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


def predict(options, method, cache):
    """MB per pass that remote rows take, as the command predicts them for the parts of a file."""
    command = [options.thinwire, "graph", "partition", options.predict, "--json"]
    command += ["--parts", str(dist.get_world_size()), "--method", method]
    command += [f"--fan-outs={options.fan_outs}", "--batch", str(options.batch)]
    command += ["--passes", str(1 + options.passes), *(["--cache", f"{cache}B"] if cache else [])]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [json.loads(line) for line in told.splitlines()]
    (found,) = (line for line in lines if line.get("supply") == "remote rows")
    return round(found["pass_bytes"] / 1e6, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hash", required=True)
    parser.add_argument("--metis", required=True)
    parser.add_argument("--fan-outs", default="25,10")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.4, help="of all rows that a cache holds")
    parser.add_argument("--predict", metavar="GRAPH", help="the graph without parts")
    parser.add_argument("--thinwire", default="thinwire", help="program that predicts bytes")
    options = parser.parse_args()
    with ranks.group():
        for mode, method, cached, format in MODES:
            graph = StoredGraph(getattr(options, method))
            features = shared(graph, format)
            width = features.rows.source.width
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
            _, first = load(loader, features, 1)
            spent, rows = (it / options.passes for it in load(loader, features, options.passes))
            if dist.get_rank() == 0:
                figures = {"mode": mode, "batches": len(loader), "pass_s": round(spent, 3)}
                figures |= {"remote_rows": round(rows), "remote_mb": round(rows * width / 1e6, 2)}
                if options.predict and format is None:
                    counted = (first + rows * options.passes) * (width + REQUEST_BYTES)
                    figures["counted_mb"] = round(counted / (1 + options.passes) / 1e6, 3)
                    figures["predicted_mb"] = predict(options, method, bytes_max if cached else 0)
                print(json.dumps(figures), flush=True)
            dist.barrier()


if __name__ == "__main__":
    main()
