"""Test accuracy of graph neural networks on batches of `thinwire.torch.graph.Loader`.

    $PYTHON bench/python/graph_accuracy.py cora
    $PYTHON bench/python/graph_accuracy.py facebook --thinwire target/release/thinwire

`cora`: the GCN of "Semi-supervised classification with graph convolutional networks", section 5, on the
public split. `facebook`: examples/python/torch_graph.py on musae-facebook over two ranks, with local and
global shuffling. Both read ../shared/data/graphs.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.functional import cross_entropy, dropout
from torch_geometric.io import read_planetoid_data
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from thinwire.torch.graph import Loader, save

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared/data/graphs"
COMPONENTS = 128
"""Principal components of the words of musae-facebook that stand for them."""


class GCN(torch.nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        # Weights of edges are those of the whole graph: a batch does not have all degrees.
        self.first = GCNConv(features, hidden, normalize=False)
        self.second = GCNConv(hidden, classes, normalize=False)

    def forward(self, batch):
        x = dropout(batch.x, 0.5, self.training)
        x = self.first(x, batch.edge_index, batch.edge_weight).relu()
        return self.second(dropout(x, 0.5, self.training), batch.edge_index, batch.edge_weight)


def outputs(model, loader):
    """Yields the outputs and labels of every batch's seeds."""
    for batch in loader:
        yield model(batch)[: batch.batch_size], batch.y[: batch.batch_size]


def learn_cora(data, seed, options):
    """Test accuracy in % after 200 passes."""
    torch.manual_seed(seed)
    model = GCN(data.num_features, 16, int(data.y.max()) + 1)
    decayed, free = model.first.parameters(), model.second.parameters()
    groups = [{"params": decayed, "weight_decay": 5e-4}, {"params": free}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    training = Loader(
        data, options.fan_outs, options.batch, data.train_mask, shuffle=True, seed=seed
    )
    for _ in range(200):
        for guess, wanted in outputs(model, training):
            optimizer.zero_grad()
            cross_entropy(guess, wanted).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        test = Loader(data, [-1, -1], 1000, data.test_mask)
        right = [guess.argmax(1) == wanted for guess, wanted in outputs(model, test)]
    return 100 * torch.cat(right).float().mean().item()


def cora(options):
    data = read_planetoid_data(str(DATA / "cora"), "cora")
    data.x /= data.x.sum(1, keepdim=True).clamp(min=1)
    data.edge_index, data.edge_weight = gcn_norm(data.edge_index, num_nodes=data.num_nodes)
    return {"": [learn_cora(data, seed, options) for seed in range(options.seeds)]}


def facebook(options):
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole.graph", Path(folder) / "parts.graph"
        save(read_facebook(), whole)
        cut = ["graph", "partition", whole, "--parts", "2", "--method", options.parts]
        subprocess.run([options.thinwire, *cut, "--output", parts], check=True, stdout=sys.stderr)
        reached = {"local": [], "global": []}
        for seed in range(options.seeds):
            for shuffle, found in reached.items():
                found.append(learn_facebook(parts, shuffle, seed, options))
        return reached


def learn_facebook(parts, shuffle, seed, options):
    """Test accuracy in % of the example on two ranks."""
    fan_outs = ",".join(map(str, options.fan_outs))
    command = [options.thinwire, "run", "--ranks", "2", "--", sys.executable]
    command += [ROOT / "examples/python/torch_graph.py", parts, f"--fan-outs={fan_outs}"]
    command += ["--shuffle", shuffle, "--seed", str(seed), "--batch", str(options.batch)]
    command += ["--passes", "10", "--codec", "none"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return 100 * float(told.split("test accuracy ")[1].split()[0])


def read_facebook():
    """The pages, their links in both directions, and a split of 60, 20 and 20 % at random."""
    folder = DATA / "musae-facebook"
    words = json.loads((folder / "facebook.json").read_text())
    page, word = zip(*((int(page), word) for page, found in words.items() for word in set(found)))
    x = torch.sparse_coo_tensor(torch.tensor([page, word]), torch.ones(len(page)))
    torch.manual_seed(0)
    left, values, _ = torch.svd_lowrank(x, COMPONENTS, niter=4)
    x = left * values
    with open(folder / "facebook_target.csv", encoding="utf-8") as lines:
        kinds = [line["page_type"] for line in csv.DictReader(lines)]
    names = sorted(set(kinds))
    with open(folder / "facebook_edges.csv", encoding="utf-8") as lines:
        links = torch.tensor([[int(end) for end in line] for line in list(csv.reader(lines))[1:]])
    links = links[links[:, 0] != links[:, 1]].t()
    place = torch.randperm(len(kinds)) / len(kinds)
    return SimpleNamespace(
        x=x.contiguous(),
        y=torch.tensor([names.index(kind) for kind in kinds]),
        edge_index=torch.cat([links, links.flip(0)], 1).unique(dim=1),
        train_mask=place < 0.6,
        val_mask=(place >= 0.6) & (place < 0.8),
        test_mask=place >= 0.8,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", choices=("cora", "facebook"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--fan-outs", default="-1,-1", help="of the training, -1 for all")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--parts", default="metis", help="method of the parts")
    parser.add_argument("--thinwire", default="thinwire", help="program")
    options = parser.parse_args()
    options.fan_outs = [int(number) for number in options.fan_outs.split(",")]
    if not DATA.is_dir():
        sys.exit(f"skipped: no folder {DATA}")
    torch.set_num_threads(1)
    for name, reached in (cora if options.graph == "cora" else facebook)(options).items():
        mean, deviation = statistics.mean(reached), statistics.stdev(reached)
        figures = {"graph": options.graph, "shuffle": name, "seeds": len(reached)}
        figures |= {"accuracy": round(mean, 2), "deviation": round(deviation, 2)}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
