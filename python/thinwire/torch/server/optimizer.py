"""The optimizer of a model with servers: it pushes gradients, and servers update.

Gradients of a worker count as its part of a batch over all workers: by default each is divided by the
number of workers, in every consistency, so that a change of consistency asks for no other learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire._core import InvalidError, __version__
from thinwire.torch.server.dense import Dense, named
from thinwire.torch.server.embedding import ServerEmbedding
from thinwire.torch.server.job import ParameterServer


class ServerOptimizer:
    """Pushes the gradients of a model's embeddings in every step. Making one joins the job.

    Args:
        server: the servers.
        model: the model with its `ServerEmbedding`s, which get their servers.
        parameters: other parameters of the model that servers update, too, and that are pulled after every
            push: `model.parameters()` for all. All workers begin with equal ones. Parameters that are not
            given are left to another optimizer, and to DDP.
        optimizer: rule of these parameters, if it is not that of the servers.
        weight: factor of this worker's gradients, by default 1 / the number of workers.

    # Errors

    InvalidError if the model has nothing for servers, the process belongs to no job, or its tables are not
    the job's; PeerError if coordinator or servers do not answer.
    """

    def __init__(
        self,
        server: ParameterServer,
        model: torch.nn.Module,
        parameters: Iterable[torch.nn.Parameter] = (),
        *,
        optimizer: str | None = None,
        weight: float | None = None,
    ) -> None:
        """Joins the job, and takes over the values that the servers have."""
        if isinstance(model, DistributedDataParallel):
            model = model.module
        found = model.named_modules()
        embeddings = {name: each for name, each in found if isinstance(each, ServerEmbedding)}
        rule = optimizer or server.optimizer
        self._dense = Dense(named(model, parameters), rule, len(embeddings))
        # A model may be an embedding alone.
        tables = [each.table(name or "embedding") for name, each in embeddings.items()]
        tables += self._dense.tables
        if not tables:
            raise InvalidError(
                f"{type(model).__name__} has no thinwire.torch.ServerEmbedding, and no parameters are given"
            )
        facts = [("thinwire", __version__), ("torch", str(torch.__version__)), ("mode", "server")]
        facts.append(("first values of dense parameters", self._dense.digest()))
        server.join(tables, facts)
        for number, (table, each) in enumerate(zip(tables, embeddings.values())):
            each.attach(server, table.name, number)
        self._server, self._weight = server, weight
        self._embeddings = list(embeddings.values())
        self.steps = 0
        """Steps that this worker has made."""
        self._dense.pull(server)

    def step(self) -> None:
        """Pushes all gradients since the last step, in one push, and pulls dense parameters.

        A push travels while the next forward pass begins; pulls contain it. In "sync" and "bounded", every
        worker makes the same number of steps, or leaves.
        """
        weight = 1 / self._server.world if self._weight is None else self._weight
        gradients = [each for embedding in self._embeddings for each in embedding.owed(weight)]
        self._server.push(gradients + self._dense.owed(weight))
        self.steps += 1
        self._dense.pull(self._server)

    def zero_grad(self) -> None:
        """Drops the gradients since the last step."""
        for each in self._embeddings:
            each.forget()
        self._dense.forget()
