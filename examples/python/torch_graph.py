"""GraphSAGE of PyG on a graph in parts, whose features the ranks share.

    thinwire graph generate blocks --vertices 20000 --columns 32 --output blocks.graph
    thinwire graph partition blocks.graph --parts 2 --output parts.graph
    thinwire run --ranks 2 -- python examples/python/torch_graph.py parts.graph

Every rank keeps the features of its own part in memory, and asks the others for the rest. DDP averages
gradients through Thinwire. `--shuffle global` deals the seeds of all parts to all ranks.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

import thinwire.torch
from thinwire.torch.graph import Loader, SharedFeatures, StoredGraph


class Sage(torch.nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first, self.second = SAGEConv(features, hidden), SAGEConv(hidden, classes)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def accuracy(model, loader):
    right = torch.zeros(2)
    with torch.no_grad():
        for batch in loader:
            guess = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(1)
            right += torch.tensor([(guess == batch.y[: batch.batch_size]).sum(), len(guess)])
    dist.all_reduce(right)
    return float(right[0] / right[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--fan-outs", default="15,10", help="per hop, -1 for all in-neighbours")
    parser.add_argument("--shuffle", choices=("local", "global"), default="local")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", default="64MB")
    parser.add_argument("--codec", default="auto")
    options = parser.parse_args()
    fan_outs = [int(number) for number in options.fan_outs.split(",")]
    dist.init_process_group("thinwire")
    torch.manual_seed(options.seed)

    graph = StoredGraph(options.graph)
    features = SharedFeatures(graph.part(dist.get_rank()))

    def loader(mask, shuffle):
        return Loader(
            graph,
            fan_outs,
            options.batch,
            mask,
            shuffle=shuffle,
            seed=options.seed,
            # Seeds of this rank's own part, or of all parts.
            bounds=graph.bounds if options.shuffle == "local" else None,
            features=features,
            cache=options.cache,
        )

    model = DistributedDataParallel(Sage(graph.num_features, 64, graph.num_classes))
    thinwire.torch.attach(model, codec=options.codec)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training, test = loader(graph.train_mask, True), loader(graph.test_mask, False)
    for number in range(options.passes):
        for batch in training:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(
                f"pass {number + 1}: loss {loss.item():.3f}, {features.fetched} rows from other ranks"
            )
    reached = accuracy(model.module, test)
    if dist.get_rank() == 0:
        print(f"test accuracy {reached:.3f}")
    dist.barrier()  # others may still ask for this rank's rows


if __name__ == "__main__":
    main()
