"""A recommender on a log of clicks, with its table of ids on parameter servers.

    export THINWIRE_COORDINATOR=127.0.0.1:4711
    thinwire coordinator --listen 127.0.0.1:4711 --servers --state /tmp/recommender &
    thinwire server & thinwire server &
    THINWIRE_MEMBER=new python examples/python/torch_recommender.py   # and more of them

The model is that of Naumov et al., "Deep Learning Recommendation Model for Personalization and
Recommendation Systems", in small: numbers go through a perceptron, ids through an embedding, and the
products of all pairs through another perceptron. The log is generated: popular ids are far more frequent
than others (Zipf), and every click has a known probability. Rank 0 prints the area under the ROC curve of
the model, and that of the true probabilities, which no model exceeds.
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import thinwire.torch

NUMBERS = 8
"""Numbers of an impression beside its ids."""
SPREAD = 2_654_435_761
"""Prime that deals popular ids over the table."""


class Log:
    """Impressions with their clicks: each has an id of every field, and some numbers."""

    def __init__(self, fields: int, rows: int) -> None:
        """The truth: every id and every number makes a click more or less likely."""
        generator = torch.Generator().manual_seed(0)
        self.fields, self.rows = fields, rows
        self.effects = torch.randn(fields * rows, generator=generator) / fields**0.5
        self.weights = torch.randn(NUMBERS, generator=generator) / NUMBERS**0.5

    def read(self, seed: int, count: int) -> tuple[torch.Tensor, ...]:
        """Ids as rows of one table, numbers, clicks, and the logits of their probabilities."""
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(count, self.fields, generator=generator, dtype=torch.float64)
        popularity = (self.rows**uniform).long() - 1  # that of the first is highest
        ids = popularity * SPREAD % self.rows + torch.arange(self.fields) * self.rows
        numbers = torch.randn(count, NUMBERS, generator=generator)
        logits = self.effects[ids].sum(1) + numbers @ self.weights - 1
        return ids, numbers, torch.bernoulli(logits.sigmoid(), generator=generator), logits


class Recommender(nn.Module):
    """Two perceptrons, and an embedding of ids, which may be on servers."""

    def __init__(self, fields: int, width: int, ids: nn.Module) -> None:
        """The ids of all fields are rows of one table."""
        super().__init__()
        self.ids = ids
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 32), nn.ReLU(), nn.Linear(32, width))
        vectors = fields + 1
        inputs = vectors * width + vectors * (vectors - 1) // 2
        self.top = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """The logits of clicks."""
        vectors = torch.cat([self.bottom(numbers)[:, None], self.ids(ids)], 1)
        products = vectors @ vectors.transpose(1, 2)
        products = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([vectors.flatten(1), products], 1)).flatten()


def main() -> None:
    """Trains as one worker of the job."""
    options = parsed()
    torch.manual_seed(0)  # all workers begin alike
    torch.set_num_threads(1)
    log = Log(options.fields, options.rows)
    rows = options.fields * options.rows
    ids = thinwire.torch.ServerEmbedding(rows, options.width, initial="normal:0.1")
    model = Recommender(options.fields, options.width, ids)
    server = thinwire.torch.ParameterServer(
        options.optimizer, options.consistency, servers=options.servers
    )
    optimizer = thinwire.torch.ServerOptimizer(server, model, model.parameters())
    with server:
        rank = server.rank
        for step in range(options.steps):
            seed = 1 + step * server.world + server.rank
            ids, numbers, clicks, _ = log.read(seed, options.batch)
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(model(ids, numbers), clicks)
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
        if rank == 0:
            ids, numbers, clicks, truth = log.read(0, 20_000)
            with torch.no_grad():
                found = area(model(ids, numbers), clicks)
            print(f"AUC {found:.4f} of at most {area(truth, clicks):.4f}")


def area(scores: torch.Tensor, clicks: torch.Tensor) -> float:
    """The area under the ROC curve: how often a click has a higher score than none has."""
    places = torch.empty(len(scores), dtype=torch.float64)
    places[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    positive = int(clicks.sum())
    least = positive * (positive + 1) / 2
    return (places[clicks > 0].sum().item() - least) / (positive * (len(clicks) - positive))


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--optimizer", default="adagrad:lr=0.1", help="rule of the servers")
    parser.add_argument("--consistency", default="async", help="sync, bounded:4, async")
    numbers = {"fields": 4, "rows": 100_000, "width": 8}
    numbers |= {"servers": 2, "batch": 512, "steps": 400}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
