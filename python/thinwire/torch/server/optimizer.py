"""Optimizer of a model on servers: workers push gradients, and servers apply them.

By default the gradients of a worker are divided by the number of workers, under every consistency. For
rules that are linear in the gradient, such as sgd, another consistency therefore needs no other learning
rate.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire._core import InvalidError, __version__
from thinwire.server.job import ParameterServer
from thinwire.server.stepper import Stepper
from thinwire.torch.layout import plain
from thinwire.torch.server.dense import Dense, named
from thinwire.torch.server.embedding import ServerEmbedding


class ServerOptimizer:
    """Pushes the gradients of a model to servers in every step. Creating one joins the job.

    Args:
        server: connection to the servers.
        model: model whose `ServerEmbedding`s are connected to the servers.
        parameters: dense parameters that servers update, too, such as `model.parameters()`; they are pulled
            after every push. Their initial values must be equal on all workers. Other parameters are left
            to another optimizer and to DDP.
        optimizer: rule of these parameters; by default that of `server`.
        weight: factor of this worker's gradients, by default 1 / the number of workers.

    # Errors

    InvalidError if the model has nothing for servers, the process belongs to no job, or its tables differ
    from the job's; PeerError if the coordinator or the servers do not answer.
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
        """Joins the job, and sets the dense parameters to the servers' values."""
        if isinstance(model, DistributedDataParallel):
            model = model.module
        found = plain(model.named_modules()).items()
        self._model = model
        self._embeddings = {name: each for name, each in found if isinstance(each, ServerEmbedding)}
        rule = optimizer or server.optimizer
        self._dense = Dense(named(model, parameters), rule, len(self._embeddings))
        if not self._embeddings and not self._dense.tables:
            raise InvalidError(
                f"{type(model).__name__} has no thinwire.torch.ServerEmbedding, and no parameters are given"
            )
        facts = [("thinwire", __version__), ("torch", str(torch.__version__))]
        facts.append(("initial values of dense parameters", self._dense.digest()))
        # A model that is itself an embedding has an empty name.
        tables = {name or "embedding": each.served for name, each in self._embeddings.items()}
        self._stepper = Stepper(server, tables, self._dense.tables, facts, weight)
        self._dense.pull(server)

    @property
    def steps(self) -> int:
        """Number of steps that this worker has made."""
        return self._stepper.steps

    def step(self) -> None:
        """Pushes all gradients since the last step and pulls the dense parameters.

        The push is sent in the background, and later pulls contain it. In "sync" and "bounded", all workers
        must make the same number of steps, or leave.
        """
        self._stepper.step(self._dense.owed(self._stepper.weight))
        self._dense.pull(self._stepper.server)

    def zero_grad(self) -> None:
        """Drops the gradients since the last step."""
        self._stepper.forget()
        self._dense.forget()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the state of the model, with all rows of its embeddings, pulled from the servers, as
        `NAME.weight`. The same model with `nn.Embedding` can load it. Saved as a safetensors file and given
        as `restore`, it is the checkpoint with which a job begins.
        """
        state = plain(self._model.state_dict().items())
        for name, each in self._embeddings.items():
            key = f"{name}.weight" if name else "weight"
            state[key] = torch.from_numpy(each.served.pull_all())
        return state
