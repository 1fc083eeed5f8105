"""Test accuracy of `thinwire graph train` on real graphs.

    python bench/python/graph_native.py cora --thinwire target/release/thinwire
    python bench/python/graph_native.py facebook --thinwire target/release/thinwire

`cora`: the GCN of "Semi-supervised classification with graph convolutional networks", section 5, on
the public split. `facebook`: GraphSAGE on musae-facebook over two ranks, with local shuffling on parts
by METIS, and with global shuffling. Needs numpy and scipy, and reads ../shared/data/graphs.
"""

import argparse
import csv
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

DATA = Path(__file__).resolve().parents[2].parent / "shared/data/graphs"
COMPONENTS = 128
"""Principal components of the words of musae-facebook that stand for them."""

CORA = ["--fan-outs=-1,-1", "--passes", "200", "--dropout", "0.5", "--weight-decay", "5e-4"]
MODELS = {
    "gcn": ["--hidden", "16"],
    "sage": ["--hidden", "64"],
    "gat": ["--hidden", "64", "--heads", "8", "--lr", "0.005"],
}
FACEBOOK = ["--fan-outs", "15,10", "--passes", "10"]


def read_cora(folder):
    """Edges, features, labels and split of Planetoid's files."""

    def read(name):
        with open(folder / f"ind.cora.{name}", "rb") as file:
            return pickle.load(file, encoding="latin1")

    tests = [int(line) for line in (folder / "ind.cora.test.index").read_text().split()]
    order = np.arange(len(read("ally")) + len(tests))
    order[tests] = order[sorted(tests)]
    x = sp.vstack([read("allx"), read("tx")]).toarray()[order]
    y = np.concatenate([read("ally"), read("ty")]).argmax(1)[order]
    pairs = [(a, b) for a, near in read("graph").items() for b in near if a != b]
    split = np.zeros(len(y), np.uint8)
    split[:140], split[140:640], split[tests] = 1, 2, 3
    return np.array(pairs), x / np.maximum(x.sum(1, keepdims=True), 1), y, split


def read_facebook(folder):
    """The pages, and a split of 60, 20 and 20 % at random."""
    words = json.loads((folder / "facebook.json").read_text())
    page, word = zip(*((int(page), word) for page, found in words.items() for word in set(found)))
    matrix = sp.csr_matrix((np.ones(len(page)), (page, word)))
    left, values, _ = svds(matrix, COMPONENTS, rng=np.random.default_rng(0))
    with open(folder / "facebook_target.csv", encoding="utf-8") as lines:
        kinds = [line["page_type"] for line in csv.DictReader(lines)]
    with open(folder / "facebook_edges.csv", encoding="utf-8") as lines:
        links = np.array([[int(end) for end in line] for line in list(csv.reader(lines))[1:]])
    place = np.random.default_rng(0).permutation(len(kinds)) / len(kinds)
    split = np.where(place < 0.6, 1, np.where(place < 0.8, 2, 3)).astype(np.uint8)
    y = np.unique(kinds, return_inverse=True)[1]
    return links[links[:, 0] != links[:, 1]], left * values, y, split


def learn(name, command, seeds):
    """Prints the test accuracy in % over some seeds."""
    reached = []
    for seed in range(seeds):
        words = [*command, "--seed", str(seed), "--json"]
        told = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        reached.append(100 * json.loads(told.splitlines()[-1])["test_accuracy"])
    figures = {"training": name, "seeds": seeds, "accuracy": round(statistics.mean(reached), 2)}
    print(json.dumps(figures | {"deviation": round(statistics.pstdev(reached), 2)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", choices=("cora", "facebook"))
    parser.add_argument("--model", choices=tuple(MODELS), default="gcn", help="of cora")
    parser.add_argument("--ranks", default="1", help="of cora")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of graphs")
    parser.add_argument("--thinwire", default="thinwire", help="program")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"skipped: no folder {options.data}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.graph == "cora":
            arrays = read_cora(options.data / "cora")
        else:
            arrays = read_facebook(options.data / "musae-facebook")
        dtypes = {"edges": np.int64, "features": np.float32, "labels": np.int64, "split": np.uint8}
        for (name, dtype), array in zip(dtypes.items(), arrays):
            np.save(folder / f"{name}.npy", np.ascontiguousarray(array, dtype))
        files = [
            word for name in list(dtypes)[1:] for word in (f"--{name}", folder / f"{name}.npy")
        ]
        graph = [options.thinwire, "graph"]
        whole, parts = folder / "whole.graph", folder / "parts.graph"
        imported = [
            *graph,
            "import",
            folder / "edges.npy",
            "--symmetric",
            *files,
            "--output",
            whole,
        ]
        subprocess.run(imported, check=True)
        train = [*graph, "train", "--codec", options.codec]
        if options.graph == "cora":
            recipe = [*CORA, "--model", options.model, *MODELS[options.model]]
            learn(options.model, [*train, whole, *recipe, "--ranks", options.ranks], options.seeds)
            return
        cut = [*graph, "partition", whole, "--parts", "2", "--method", "metis", "--output", parts]
        subprocess.run(cut, check=True, stdout=sys.stderr)
        learn("local", [*train, parts, *FACEBOOK], options.seeds)
        learn("global", [*train, whole, *FACEBOOK, "--ranks", "2"], options.seeds)


if __name__ == "__main__":
    main()
