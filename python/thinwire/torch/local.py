"""DiLoCo and LocalSGD under their earlier names, from before the core had modes.

They use `Rounds`, also synchronise buffers, and derive the outer optimizer from a PyTorch optimizer.

    outer = thinwire.torch.DiLoCo(model, every=100)  # Rounds(model, "diloco:100")
    for batch in data:
        train_step(batch)
        outer.step()

Law: after a round all ranks have bit-identical parameters and buffers.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from thinwire import arguments, deprecated
from thinwire._core import Group, InvalidError
from thinwire.arguments import Seconds, shown
from thinwire.torch.replica import broadcast, every_steps
from thinwire.torch.rounds import Rounds
from thinwire.torch.signature import options_of

Outer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
NESTEROV: Outer = functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)


class DiLoCo:
    """Trains independent copies, and every `every` steps moves their common parameters by an outer
    optimizer.

    Deprecated: `Rounds(model, "diloco:100")`. Creating one is a collective call: all ranks begin with rank
    0's parameters and buffers.

    Args:
        model: the model that the inner optimizer trains; its parameters f32, f16 or bf16.
        every: steps between two rounds.
        outer: function that creates the outer optimizer: a `torch.optim.SGD`, of which lr, momentum
            and nesterov are used.
        codec: codec of pseudo-gradients, as in `Rounds`; "auto" means "int8".
        group: the ranks, as in `thinwire.torch.hook`.
        bucket_bytes, seed, algorithm, unchecked, timeout_s, heartbeat_timeout_s: as in
            `thinwire.torch.hook`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        every: int = 100,
        outer: Outer = NESTEROV,
        codec: str = "auto",
        group: Any = None,
        *,
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
        algorithm: str | None = None,
        unchecked: bool = False,
        timeout_s: Seconds | None = None,
        heartbeat_timeout_s: Seconds | None = None,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        mode = f"diloco:{every_steps(every)},{settings_of(outer)}"
        options = {"bucket_bytes": bucket_bytes, "seed": seed, "algorithm": algorithm}
        times = {"timeout_s": timeout_s, "heartbeat_timeout_s": heartbeat_timeout_s}
        self._start(model, every, mode, codec, group, unchecked=unchecked, **options, **times)

    def _start(
        self,
        model: torch.nn.Module,
        every: int,
        mode: str,
        codec: str,
        group: Any,
        **options: Any,
    ) -> None:
        arguments.text("codec", codec)
        name = type(self).__name__
        deprecated.warn(f"thinwire.torch.{name}", f'thinwire.torch.Rounds(model, "{mode}")', 4)
        self.every = every
        self._model = model
        self._rounds = Rounds(model, mode, None if codec == "auto" else codec, group, **options)

    @property
    def group(self) -> Group:
        """The ranks."""
        return self._rounds.group

    def step(self) -> bool:
        """Counts a step of the inner optimizer. Returns True if a round ended with it: all ranks then
        have the same parameters.

        If some rank's parameters are not finite, all ranks return to the last parameters that they
        had in common.

        # Errors

        InvalidError if a parameter that was frozen at the common start is now trained.
        """
        record = self._rounds.step()
        if record["skipped"]:
            warnings.warn(
                "a rank diverged: all ranks return to the parameters of the last round",
                stacklevel=2,
            )
        if not record["ended"]:
            return False
        broadcast(self.group, list(self._model.buffers()))
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of `Rounds.state_dict`; a collective call.

        The model is not in it. Between rounds each rank has its own model: save it on every rank.
        """
        return self._rounds.state_dict()

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned on this rank; a collective call.

        # Errors

        InvalidError on all ranks if the state of any rank is of a different mode, model or number of ranks.
        """
        self._rounds.load_state_dict(entries)


class LocalSGD(DiLoCo):
    """Trains independent copies, and every `every` steps gives all ranks the average of their parameters.

    Deprecated: `Rounds(model, "local:8")`. Arguments and methods are those of DiLoCo, except for
    the outer optimizer.
    """

    @options_of(DiLoCo.__init__, ("outer",))
    def __init__(
        self,
        model: torch.nn.Module,
        every: int = 8,
        codec: str = "auto",
        group: Any = None,
        **options: Any,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        self._start(model, every, f"local:{every_steps(every)}", codec, group, **options)


def settings_of(outer: Outer) -> str:
    """Returns the settings of the outer optimizer that a function creates, in the notation of
    modes.

    # Errors

    InvalidError if the function creates no optimizer, or one that modes cannot express.
    """
    if not callable(outer):
        raise InvalidError(f"outer is {shown(outer)}, expected a function that makes an optimizer")
    made = outer([torch.zeros(1, requires_grad=True)])
    arguments.instance("what outer makes", made, torch.optim.Optimizer)
    settings = made.param_groups[0]
    others = ("dampening", "weight_decay", "maximize")
    if type(made) is not torch.optim.SGD or any(settings[name] for name in others):
        raise InvalidError(
            f"outer makes {type(made).__name__}, expected torch.optim.SGD with lr, momentum and nesterov "
            '(hint: modes have other rules, as in Rounds(model, "diloco:100,outer=adam,lr=0.1"))'
        )
    rate, factor = float(settings["lr"]), float(settings["momentum"])
    if factor == 0:
        return f"outer=sgd,lr={rate}"
    rule = "nesterov" if settings["nesterov"] else "momentum"
    return f"outer={rule},lr={rate},factor={factor}"
