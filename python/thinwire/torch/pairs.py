"""Pair averaging under its earlier name, from before the core had modes.

    gossip = thinwire.torch.PairAveraging(model)  # Rounds(model, "pair")
    for batch in data:
        train_step(batch)
        gossip.step()
    gossip.agree()

Law: exchanges preserve the mean of all ranks' parameters, which all ranks have after `agree`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from thinwire import arguments, deprecated
from thinwire._core import InvalidError
from thinwire._core import partner as draw
from thinwire.arguments import Seconds, whole
from thinwire.torch.replica import every_steps
from thinwire.torch.rounds import Rounds

CODECS = ("none", "f16", "bf16")


class PairAveraging:
    """Averages parameters with a random partner every `every` steps, without waiting for it.

    Deprecated: `Rounds(model, "pair")`. Creating one is a collective call: all ranks begin with rank 0's
    parameters and buffers. Afterwards, each rank keeps its own buffers.

    Args:
        model: the model that the optimizer trains; its parameters f32, f16 or bf16.
        every: steps between two rounds.
        codec: "none"; parameters travel as f32 under "f16" and "bf16", too.
        seed: for drawing partners; the same on all ranks.
        group: the ranks, as in `thinwire.torch.hook`.
        timeout_s, heartbeat_timeout_s: as in `thinwire.torch.hook`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        every: int = 1,
        codec: str = "none",
        seed: int = 1,
        group: Any = None,
        *,
        timeout_s: Seconds | None = None,
        heartbeat_timeout_s: Seconds | None = None,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        arguments.text("codec", codec)
        if codec not in CODECS:
            raise InvalidError(
                f"codec is {codec}, expected one of {', '.join(CODECS)} between pairs"
            )
        self.every = every_steps(every)
        self._seed = whole("seed is", seed)
        self._warned = False
        mode = f"pair:{every}"
        deprecated.warn(
            "thinwire.torch.PairAveraging", f'thinwire.torch.Rounds(model, "{mode}")', 3
        )
        self._rounds = Rounds(
            model,
            mode,
            "none",
            group,
            seed=seed,
            timeout_s=timeout_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
        )

    def step(self) -> int | None:
        """Counts a step of the optimizer. Returns the partner of the round that ended with it; None
        if no round ended.

        # Errors

        InvalidError if a parameter that was frozen at the common start is now trained.
        """
        if self._rounds.step()["skipped"] and not self._warned:
            self._warned = True
            warnings.warn(
                "this rank or a partner has parameters that are not finite: rounds with it are skipped",
                RuntimeWarning,
                stacklevel=2,
            )
        rounds, rest = divmod(self._rounds._copy.steps(), self.every)
        group = self._rounds.group
        return None if rest else draw(group.rank, group.world, self._seed, rounds - 1)

    def agree(self) -> None:
        """Gives all ranks the mean of all ranks' parameters; a collective call, for the end of training."""
        self._rounds.finish()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of `Rounds.state_dict`; a collective call.

        The model is not part of it, since each rank has its own.
        """
        return self._rounds.state_dict()

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned on this rank; a collective call.

        # Errors

        InvalidError on all ranks if the state of any rank is of a different mode, model or number of ranks.
        """
        self._rounds.load_state_dict(entries)
