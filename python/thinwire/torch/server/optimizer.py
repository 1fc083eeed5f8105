"""Optimizer of a model on servers: workers push gradients, and servers apply them.

Servers use the learning rate with which the job begins. A scheduler still works under `sgd`, whose
update is linear in the gradient: before the push, the gradient is multiplied by the ratio of the
current rate to the first one.

By default the gradients of a worker are divided by the number of workers, under every consistency.
For rules that are linear in the gradient, such as sgd, the learning rate therefore need not change
with the consistency.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire._core import InvalidError, __version__
from thinwire.server.job import ParameterServer
from thinwire.server.stepper import Stepper
from thinwire.torch.layout import plain
from thinwire.torch.server.dense import Dense, named
from thinwire.torch.server.embedding import ServerEmbedding
from thinwire.torch.server.hidden import Hidden


class ServerOptimizer(torch.optim.Optimizer):
    """Pushes the gradients of a model to servers in every step. Creating one joins the job.

    Between backward and `step`, clipping and `torch.amp.GradScaler` change the gradients of tables
    and of dense parameters like those of a local model. All parameters with the same `rule` are one
    entry of `param_groups`, with one `lr`. A scheduler may change the `lr` of `sgd`, in the same
    way on all workers; the rates of other rules are constant.

    Args:
        server: connection to the servers.
        model: model whose `ServerEmbedding`s are connected to the servers.
        parameters: dense parameters that servers update, too, such as `model.parameters()`; they are pulled
            after every push. Their initial values must be equal on all workers. Another optimizer
            and DDP train the other parameters.
        optimizer: rule of these parameters; by default that of `server`.
        weight: factor of this worker's gradients, by default 1 / the number of workers.

    # Errors

    InvalidError if the model has nothing for servers, the process belongs to no job, or its tables differ
    from the job's; PeerError if the coordinator or the servers do not answer.
    """

    _step_supports_amp_scaling = True
    """Makes `GradScaler.step` always call `step`, and pass whether it has found infinity; see
    `_factor`."""

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
        self._model = unwrapped(model)
        self._names = embeddings(self._model)
        self._embeddings = list(dict.fromkeys(self._names.values()))
        rule = optimizer or server.optimizer
        tables = {id(each.batch) for each in self._embeddings}
        others = [each for each in parameters if id(each) not in tables]
        self._dense = Dense(named(self._model, others), rule, len(self._embeddings))
        if not self._embeddings and not self._dense.tables:
            raise InvalidError(
                f"{type(model).__name__} has no thinwire.torch.ServerEmbedding, and no parameters are given"
            )
        facts = [("thinwire", __version__), ("torch", str(torch.__version__))]
        facts.append(("initial values of dense parameters", self._dense.digest()))
        first = {each: name for name, each in reversed(self._names.items())}
        # A model that is itself an embedding has an empty name.
        served = {first[each] or "embedding": each.served for each in self._embeddings}
        self._stepper = Stepper(server, served, self._dense.tables, facts, weight)
        groups = self._groups(server.optimizer, rule)
        self._rules = list(groups)
        listed = [
            {"params": groups[each], "lr": rate_of(each), "rule": each} for each in self._rules
        ]
        super().__init__(listed, {"lr": 0.0})
        self._hidden = Hidden((each.batch for each in self._embeddings), self)
        self._is_hybrid = is_one_of_several() and any(
            each.requires_grad for each in self.other_parameters()
        )
        for each in self._embeddings if self._is_hybrid else ():
            each.keep_apart()
        self._dense.pull(server)

    @property
    def steps(self) -> int:
        """Number of steps that this worker has made."""
        return self._stepper.steps

    def other_parameters(self) -> list[torch.nn.Parameter]:
        """Returns the model's parameters that no server trains, for a separate optimizer."""
        served = {id(each) for group in self.param_groups for each in group["params"]}
        return [each for each in self._model.parameters() if id(each) not in served]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Accepts only the groups of the job's tables.

        # Errors

        InvalidError once the job has its tables.
        """
        if hasattr(self, "_hidden"):
            raise InvalidError(
                "a ServerOptimizer takes no more parameters, expected all of them when it joins the job"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """Refuses copies and pickles.

        # Errors

        InvalidError: the optimizer is this process's connection to its servers.
        """
        raise InvalidError(
            "a ServerOptimizer cannot be copied or pickled: it is this process's connection to servers "
            "(hint: save state_dict(), and full_state_dict() for the model)"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the learning rates of `state_dict`, which a ServerOptimizer with these rules
        has returned.

        Values, and the state of rules, stay on the servers.

        # Errors

        InvalidError for the state of another optimizer, or of other rules.
        """
        found = [group.get("rule") for group in state_dict.get("param_groups", [])]
        if found != self._rules:
            raise InvalidError(
                f"the state has rules {', '.join(map(str, found)) or 'none'}, expected "
                f"{', '.join(self._rules)} (hint: load the result of state_dict() of this ServerOptimizer)"
            )
        super().load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        """Pushes all gradients since the last step and pulls the dense parameters. Returns the
        result of `closure`, which computes the gradients if it is given.

        The push is sent in the background, and later pulls contain it. In "sync" and "bounded", all workers
        must make the same number of steps, or leave. A step in which `GradScaler.step` has found
        infinity or NaN pushes nothing, but is counted, so that no other worker waits.

        # Errors

        InvalidError if another optimizer has also unscaled the gradients of a table; if
        `GradScaler.unscale_` was called on this optimizer while ranks also train parameters
        together; and for a changed learning rate under a rule whose rate is constant.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        ratios = self._ratios()
        factor = self._factor()
        for each in self._embeddings if factor else ():
            each.owe(factor * ratios[id(each.batch)])
        # Dense parameters have one rule.
        ratio = next((ratios[id(each)] for each in self._dense.parameters), 1.0)
        dense = self._dense.owed(factor * ratio * self._stepper.weight) if factor else ()
        for each in self._embeddings:
            each.forget()
        self._stepper.step(dense)
        self._dense.pull(self._stepper.server)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step."""
        for each in self._embeddings:
            each.forget()
        self._dense.forget()

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the state of the model, with all rows of its embeddings, pulled from the servers, as
        `NAME.weight`. The same model with `nn.Embedding` can load it. Saved as a safetensors file
        and passed as `restore`, it is a checkpoint with which a job can begin.
        """
        state = plain(self._model.state_dict().items())
        rows = {each: torch.from_numpy(each.served.pull_all()) for each in self._embeddings}
        for name, each in self._names.items():
            state[f"{name}.weight" if name else "weight"] = rows[each]
        return state

    def _groups(self, usual: str, dense: str) -> dict[str, list[torch.nn.Parameter]]:
        """Returns the parameters of each rule. `usual` is the rule of tables that have no rule of
        their own, and `dense` the rule of dense parameters."""
        found: dict[str, list[torch.nn.Parameter]] = {}
        for table in self._embeddings:
            found.setdefault(table.served.optimizer or usual, []).append(table.batch)
        for each in self._dense.parameters:
            found.setdefault(dense, []).append(each)
        return found

    def _ratios(self) -> dict[int, float]:
        """Returns the factor of the gradients of each parameter, for its current learning rate.

        # Errors

        InvalidError if a rate differs from the servers' and the rule is not linear in the gradient.
        """
        found: dict[int, float] = {}
        for rule, group in zip(self._rules, self.param_groups):
            rate, initial = float(group["lr"]), rate_of(rule)
            if rate != initial and (initial == 0 or rule.partition(":")[0] != "sgd"):
                raise InvalidError(
                    f"lr is {rate:g} for {rule}, whose rate on servers is constant, expected {initial:g} "
                    "(hint: a scheduler may change the rate of sgd)"
                )
            ratio = 1.0 if rate == initial else rate / initial
            found |= {id(each): ratio for each in group["params"]}
        return found

    def _factor(self) -> float:
        """Returns the factor of the gradients: 1 / GradScaler's scale, or 0 if it has found infinity.

        `GradScaler.step` sets the attributes `found_inf` and `grad_scale` during `step`; the second is None
        after `unscale_`.
        """
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is None:
            self._hidden.forget()
            return 1.0
        if self._is_hybrid:
            self._expect_scale(scale)
        else:
            self._hidden.scale()
        if float(found_inf):
            return 0.0
        return 1.0 if scale is None else 1 / float(scale)

    def _expect_scale(self, scale: torch.Tensor | None) -> None:
        """Prepares a scaled step of ranks that train other parameters together.

        All ranks must change their scale in the same way, so only gradients that all ranks have may
        decide it. The scaler therefore does not check tables. If a rank's gradients of a table are
        not finite, the rank leaves this table out of the step.
        """
        if scale is None:
            raise InvalidError(
                "GradScaler.unscale_ is called on a ServerOptimizer, but ranks also train parameters "
                "together, expected GradScaler.step alone (hint: unscale_ the other optimizer)"
            )
        for each in self._embeddings:
            if not each.is_finite:
                each.forget()


def rate_of(rule: str) -> float:
    """Returns the learning rate of a valid rule, such as adagrad:lr=0.1."""
    settings = rule.partition(":")[2].split(",")
    return next(float(each[3:]) for each in settings if each.startswith("lr="))


def is_one_of_several() -> bool:
    """Whether other processes train with this one through torch.distributed."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the model without the wrappers of DDP and torch.compile, in whatever order they were
    applied."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    inner = getattr(inner, "_orig_mod", inner)
    return model if inner is model else unwrapped(inner)


def embeddings(model: torch.nn.Module) -> dict[str, ServerEmbedding]:
    """Returns the tables of a model by their plain names; a table that appears twice has two names."""
    found = model.named_modules(remove_duplicate=False)
    return plain((name, each) for name, each in found if isinstance(each, ServerEmbedding))
