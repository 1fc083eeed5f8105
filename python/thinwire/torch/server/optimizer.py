"""The optimizer of a model with servers: it pushes gradients, and servers update.

Gradients of a worker count as its part of a batch over all workers: by default each is divided by the
number of workers, in every consistency, so that a change of consistency asks for no other learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire._core import InvalidError, __version__
from thinwire.server.job import ParameterServer
from thinwire.server.stepper import Stepper
from thinwire.torch.server.dense import Dense, named
from thinwire.torch.server.embedding import ServerEmbedding


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
        self._model = model
        self._embeddings = {name: each for name, each in found if isinstance(each, ServerEmbedding)}
        rule = optimizer or server.optimizer
        self._dense = Dense(named(model, parameters), rule, len(self._embeddings))
        if not self._embeddings and not self._dense.tables:
            raise InvalidError(
                f"{type(model).__name__} has no thinwire.torch.ServerEmbedding, and no parameters are given"
            )
        facts = [("thinwire", __version__), ("torch", str(torch.__version__))]
        facts.append(("first values of dense parameters", self._dense.digest()))
        # A model may be an embedding alone.
        tables = {name or "embedding": each.served for name, each in self._embeddings.items()}
        self._stepper = Stepper(server, tables, self._dense.tables, facts, weight)
        self._dense.pull(server)

    @property
    def steps(self) -> int:
        """Steps that this worker has made."""
        return self._stepper.steps

    def step(self) -> None:
        """Pushes all gradients since the last step, in one push, and pulls dense parameters.

        A push travels while the next forward pass begins; pulls contain it. In "sync" and "bounded", every
        worker makes the same number of steps, or leaves.
        """
        self._stepper.step(self._dense.owed(self._stepper.weight))
        self._dense.pull(self._stepper.server)

    def zero_grad(self) -> None:
        """Drops the gradients since the last step."""
        self._stepper.forget()
        self._dense.forget()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the state of the model with all rows of its embeddings, which are pulled, as
        `NAME.weight`: the state of the same model with `nn.Embedding`. That model loads it, and a job
        begins with it if it is saved as a safetensors file and given as `restore`.
        """
        state = dict(self._model.state_dict())
        for name, each in self._embeddings.items():
            key = f"{name}.weight" if name else "weight"
            state[key] = torch.from_numpy(each.served.pull_all())
        return state
