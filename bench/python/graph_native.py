"""Test accuracy of `thinwire graph train` on Cora's public split.

    python bench/python/graph_native.py --thinwire target/release/thinwire

Needs numpy and scipy. Imports ../shared/data/graphs/cora with `thinwire graph import`, and trains the GCN
of "Semi-supervised classification with graph convolutional networks", section 5, with ten seeds.
"""

import argparse
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/graphs/cora"
REGULAR = ["--dropout", "0.5", "--weight-decay", "5e-4"]
MODELS = {
    "gcn": ["--hidden", "16", *REGULAR],
    "sage": ["--hidden", "64", *REGULAR],
    "gat": ["--hidden", "64", "--heads", "8", "--lr", "0.005", *REGULAR],
}


def read(data, name):
    with open(data / f"ind.cora.{name}", "rb") as file:
        return pickle.load(file, encoding="latin1")


def convert(data, folder):
    """Writes edges, features, labels and the split of Planetoid's files."""
    tests = [int(line) for line in (data / "ind.cora.test.index").read_text().split()]
    order = np.arange(len(read(data, "ally")) + len(tests))
    order[tests] = order[sorted(tests)]
    x = sp.vstack([read(data, "allx"), read(data, "tx")]).toarray()[order]
    x = x / np.maximum(x.sum(1, keepdims=True), 1)
    y = np.concatenate([read(data, "ally"), read(data, "ty")]).argmax(1)[order]
    pairs = [(a, b) for a, near in read(data, "graph").items() for b in near if a != b]
    split = np.zeros(len(y), np.uint8)
    split[:140], split[140:640], split[tests] = 1, 2, 3
    for name, array in [
        ("edges", np.array(sorted(set(pairs)))),
        ("x", x.astype(np.float32)),
        ("y", y),
        ("split", split),
    ]:
        np.save(folder / f"{name}.npy", np.ascontiguousarray(array))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), default="gcn")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ranks", default="1")
    parser.add_argument("--passes", default="200")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--thinwire", default="thinwire", help="program")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of Planetoid's files")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"skipped: no folder {options.data}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        convert(options.data, folder)
        arrays = [
            word for flag in ("features", "labels", "split")
            for word in (f"--{flag}", {"features": "x", "labels": "y"}.get(flag, flag) + ".npy")
        ]
        command = [options.thinwire, "graph", "import", "edges.npy", "--symmetric", *arrays]
        subprocess.run([*command, "--output", "cora.graph"], check=True, cwd=folder)
        train = [options.thinwire, "graph", "train", "cora.graph", "--model", options.model, "--json"]
        train += ["--fan-outs=-1,-1", "--passes", options.passes, "--ranks", options.ranks]
        train += ["--codec", options.codec, *MODELS[options.model]]
        reached = []
        for seed in range(options.seeds):
            told = subprocess.run(
                [*train, "--seed", str(seed)], check=True, cwd=folder, stdout=subprocess.PIPE, text=True
            ).stdout
            reached.append(100 * json.loads(told.splitlines()[-1])["test_accuracy"])
            print(f"seed {seed}: {reached[-1]:.1f} %", file=sys.stderr)
    figures = {"model": options.model, "ranks": options.ranks, "seeds": len(reached)}
    figures["accuracy"] = round(statistics.mean(reached), 2)
    figures["deviation"] = round(statistics.pstdev(reached), 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
