"""Gossip: in each round every rank averages its parameters with one other.

Nobody waits for more than one partner. Who meets whom is drawn from a seed that all ranks share, so
they agree without talking, and each other rank is equally likely ("Asynchronous Decentralized Parallel
Stochastic Gradient Descent", here with partners that wait for each other).

    gossip = thinwire.torch.PairAveraging(model)
    for batch in data:
        train_step(batch)
        gossip.step()
    gossip.agree()

Law: a round does not change the mean of all ranks' parameters; with codec "none", partners are
bit-identical after it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from thinwire._core import InvalidError
from thinwire.torch import group as groups
from thinwire.torch.replica import Pending, begin_alike, every_steps, trainable

CODECS = {"none": None, "f16": torch.float16, "bf16": torch.bfloat16}


class PairAveraging:
    """Averages parameters with a random partner every `every` steps.

    Making one is a collective call: all ranks begin with rank 0's parameters and buffers. Buffers stay
    each rank's own afterwards.

    Args:
        model: the model that the optimizer trains; its parameters f32, f16 or bf16.
        every: steps between two rounds.
        codec: how parameters travel: "none", "f16" or "bf16".
        seed: of the drawing of partners; the same on all ranks.
        group: the ranks, as in `thinwire.torch.hook`.
        timeout_s: how long a rank waits for its partner, in seconds.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        every: int = 1,
        codec: str = "none",
        seed: int = 0,
        group: Any = None,
        *,
        timeout_s: float = groups.TIMEOUT_S,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        if codec not in CODECS:
            raise InvalidError(
                f"codec is {codec}, expected one of {', '.join(CODECS)} between pairs"
            )
        self.every = every_steps(every)
        self._parameters = list(trainable(model).values())
        self._codec = codec
        self._seed = seed
        self._steps = 0
        self._connection = groups.of(group, timeout_s)
        options = {"mode": "PairAveraging", "every": every, "codec": codec, "seed": seed}
        begin_alike(self._connection.group, model, **options)

    def step(self) -> int | None:
        """Counts a step of the optimizer. After a round, the partner's rank; None if there was none."""
        self._steps += 1
        if self._steps % self.every != 0:
            return None
        group, drawing = self._connection.group, self._steps // self.every
        partner = partners(group.world, self._seed, drawing)[group.rank]
        if partner is not None:
            self._meet(partner)
        return partner

    def agree(self) -> None:
        """Gives all ranks the mean of all ranks' parameters; a collective call, for the end of training."""
        mine = self._flat(torch.float32)
        self._connection.group.all_reduce(mine.data_ptr(), mine.numel(), "f32", average=True)
        self._write(mine)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps: with the seed, all that decides who meets whom."""
        return {"steps": self._steps}

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._steps = entries["steps"]

    def _meet(self, partner: int) -> None:
        """Exchanges parameters with `partner` and averages."""
        mine = self._flat(CODECS[self._codec] or self._own_dtype())
        theirs = torch.empty_like(mine)
        size, group, sent = mine.numel() * mine.element_size(), self._connection.group, Pending()
        group.send(mine.data_ptr(), size, partner, done=sent.done)
        group.recv(theirs.data_ptr(), size, partner)
        sent.wait()
        if self._codec == "none":
            self._write((mine.float() + theirs.float()) / 2)
        else:
            self._write(self._flat(torch.float32) + (theirs.float() - mine.float()) / 2)

    def _own_dtype(self) -> torch.dtype:
        """The dtype in which all parameters travel without loss."""
        dtypes = {parameter.dtype for parameter in self._parameters}
        return dtypes.pop() if len(dtypes) == 1 else torch.float32

    @torch.no_grad()
    def _flat(self, dtype: torch.dtype) -> torch.Tensor:
        """All parameters, one after the other, in host memory."""
        return torch.cat([each.detach().reshape(-1).cpu().to(dtype) for each in self._parameters])

    @torch.no_grad()
    def _write(self, flat: torch.Tensor) -> None:
        """Takes the parameters from `flat`."""
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, values in zip(self._parameters, flat.split(sizes)):
            parameter.copy_(values.view(parameter.shape))


def partners(world: int, seed: int, drawing: int) -> list[int | None]:
    """The partner of each rank in one drawing; with an odd number of ranks one has none."""

    def lot(rank: int) -> bytes:
        return hashlib.blake2b(f"{seed} {drawing} {rank}".encode(), digest_size=8).digest()

    order = sorted(range(world), key=lot)
    drawn: list[int | None] = [None] * world
    for first, second in zip(order[::2], order[1::2]):
        drawn[first], drawn[second] = second, first
    return drawn
