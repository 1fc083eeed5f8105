"""Optimizer of a network's tables on servers, as a callback or in a custom training loop."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.train import Callback, RunContext

import thinwire
from thinwire.server.job import ParameterServer
from thinwire.server.stepper import Stepper

from ..guard import settle
from .embedding import ServerEmbedding


class ServerOptimizer(Callback):
    """Pushes the gradients of a network's embeddings after every step. Creating one joins the job.

    server: connection to the servers; network: network whose `ServerEmbedding`s are connected to them;
    weight: factor of this worker's gradients, by default 1 / the number of workers. A MindSpore
    optimizer trains all other parameters, with `GradExchange` if there are several workers.

        model.train(epochs, data, callbacks=[stepper])

    or, in a custom loop, after the update of the other parameters:

        loss, gradients = gradient_function(ids, labels)
        optimizer(gradients)
        stepper.step()

    Raises InvalidError if the network has no such embedding, the process belongs to no job, or its tables
    differ from the job's; PeerError if the coordinator or the servers do not answer.
    """

    def __init__(
        self, server: ParameterServer, network: nn.Cell, *, weight: float | None = None
    ) -> None:
        super().__init__()
        cells = network.cells_and_names()
        self.embeddings = {name: cell for name, cell in cells if isinstance(cell, ServerEmbedding)}
        if not self.embeddings:
            raise thinwire.InvalidError(
                f"{type(network).__name__} has no thinwire.mindspore.ServerEmbedding"
            )
        self.network = network
        # A network that is itself an embedding has an empty name.
        tables = {name or "embedding": cell.served for name, cell in self.embeddings.items()}
        facts = [("thinwire", thinwire.__version__), ("mindspore", ms.__version__)]
        self.stepper = Stepper(server, tables, (), facts, weight)

    @property
    def steps(self) -> int:
        """Number of steps that this worker has made."""
        return self.stepper.steps

    @property
    def synchronizer(self) -> ServerOptimizer:
        """The failure that `guard` reports."""
        return self

    def step(self) -> None:
        """Pushes all gradients since the last step in the background. Later pulls contain them.

        In "sync" and "bounded", all workers must make the same number of steps, or leave. A table whose
        `anchor` requires no gradient does not change.
        """
        for cell in self.embeddings.values():
            # In PyNative mode backward may still be under way; the anchor's update comes after it.
            cell.anchor.asnumpy()
            if cell.anchor.requires_grad:
                cell.lookup.rows.stepped()
            else:
                cell.served.forget()
        self.stepper.step()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Makes a step of `Model.train`."""
        self.step()

    def full_parameters(self) -> dict[str, ms.Parameter]:
        """Returns the parameters of the network, with all rows of its embeddings as `NAME.embedding_table`,
        pulled from the servers. These are the parameters of the same network with `nn.Embedding`, for
        `mindspore.save_checkpoint` and `mindspore.load_param_into_net`.
        """
        anchors = {id(cell.anchor) for cell in self.embeddings.values()}
        named = self.network.parameters_and_names()
        found = {name: each for name, each in named if id(each) not in anchors}
        for name, cell in self.embeddings.items():
            key = f"{name}.embedding_table" if name else "embedding_table"
            found[key] = ms.Parameter(ms.Tensor(cell.served.pull_all()), name=key)
        return found

    def failure(self) -> thinwire.Error | None:
        """Returns the error of a lookup that has failed, or `None`."""
        errors = [cell.lookup.rows.error for cell in self.embeddings.values()]
        return next((error for error in errors if error is not None), None)

    def abort(self, reason: str) -> None:
        """Does nothing. `with server` leaves the job after a failure, and the other workers notice
        this."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            settle(self, error)
