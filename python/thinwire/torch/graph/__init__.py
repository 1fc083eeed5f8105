"""Mini-batches of graphs for graph neural networks, in place of PyG's `NeighborLoader`.

    loader = thinwire.torch.graph.Loader(data, [15, 10], batch_size=1024, input_nodes=data.train_mask)
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]

Threads of the loader sample batches and copy their features ahead of the training. Under
`torch.distributed` every rank gets its own part of each pass.
"""

from thinwire.torch.graph.batch import Batch
from thinwire.torch.graph.blocks import Block
from thinwire.torch.graph.file import StoredGraph, save
from thinwire.torch.graph.loader import Loader
from thinwire.torch.graph.shared import SharedFeatures

__all__ = ["Batch", "Block", "Loader", "SharedFeatures", "StoredGraph", "save"]
