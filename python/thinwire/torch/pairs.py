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
bit-identical after it. A model in f16 or bf16 follows the same law: each rank keeps the errors of rounding
its parameters to the model's dtype, and adds them in the next round. Otherwise rounding would lose the
progress of a rank wherever it is smaller than the dtype's resolution.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from thinwire import arguments
from thinwire._core import InvalidError
from thinwire._core import partner as draw
from thinwire.agreement import agree, together
from thinwire.arguments import Seconds, shown, whole
from thinwire.torch import group as groups
from thinwire.torch.replica import Pending, begin_alike, every_steps, expect_no_more, trainable

CODECS = {"none": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class PairAveraging:
    """Averages parameters with a random partner every `every` steps.

    Making one is a collective call: all ranks begin with rank 0's parameters and buffers. Buffers stay
    each rank's own afterwards.

    Args:
        model: the model that the optimizer trains; its parameters f32, f16 or bf16.
        every: steps between two rounds.
        codec: how parameters travel: "none" (f32), "f16" or "bf16".
        seed: of the drawing of partners; the same on all ranks.
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
        whole("seed is", seed)
        if codec not in CODECS:
            raise InvalidError(
                f"codec is {codec}, expected one of {', '.join(CODECS)} between pairs"
            )
        self.every = every_steps(every)
        self._model = model
        self._parameters = list(trainable(model).values())
        self._codec = codec
        self._seed = seed
        self._steps = 0
        self._rest: torch.Tensor | None = None
        self._warned = False
        self._connection = groups.of(group, timeout_s, heartbeat_timeout_s)
        options = {"mode": "PairAveraging", "every": every, "codec": codec, "seed": seed}
        begin_alike(self._connection.group, model, **options)

    def step(self) -> int | None:
        """Counts a step of the optimizer. After a round, the partner's rank; None if there was none.

        # Errors

        InvalidError if a parameter is trained now that was frozen when ranks began alike.
        """
        self._steps += 1
        if self._steps % self.every != 0:
            return None
        expect_no_more(self._connection.group, self._model, self._parameters)
        group, drawing = self._connection.group, self._steps // self.every - 1
        partner = draw(group.rank, group.world, self._seed, drawing)
        if partner is not None:
            self._meet(partner)
        return partner

    def agree(self) -> None:
        """Gives all ranks the mean of all ranks' parameters; a collective call, for the end of training."""
        mine = self._exact()
        self._connection.group.all_reduce(mine.data_ptr(), mine.numel(), "f32", average=True)
        self._write(mine)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of steps, which with the seed decides pairs, and the rounding errors.

        The model is not part of it, since each rank has its own.
        """
        rest = () if self._rest is None else (self._rest.clone(),)
        return {"steps": self._steps, f"rank{self._connection.group.rank}": rest}

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Loads what `state_dict` returned on this rank; from another rank's only the number of steps. A
        collective call.

        # Errors

        InvalidError on all ranks, before anything has changed, if on any it is of another model, or if
        ranks have states of different steps, by which they would not find each other.
        """
        group = self._connection.group
        rest = together(group, lambda: self._expect(entries))
        agree([f"steps {entries['steps']} in the state"], group)
        self._steps, self._rest = entries["steps"], None if rest is None else rest.clone()

    def _expect(self, entries: dict[str, Any]) -> torch.Tensor | None:
        """What rounding has taken, from a state; refuses that of another model."""
        if not isinstance(entries, Mapping) or "steps" not in entries:
            raise InvalidError("the state has no steps, expected what state_dict gave")
        whole("the state has steps", entries["steps"])
        (rest,) = entries.get(f"rank{self._connection.group.rank}") or (None,)
        if rest is None:
            return None
        elements = sum(parameter.numel() for parameter in self._parameters)
        if not isinstance(rest, torch.Tensor) or rest.numel() != elements:
            found = rest.numel() if isinstance(rest, torch.Tensor) else shown(rest)
            raise InvalidError(
                f"the state is of another model: of {found} parameters, this one has {elements}"
            )
        if not rest.isfinite().all():
            raise InvalidError("the rest of rounding in the state is not finite")
        return rest

    def _meet(self, partner: int) -> None:
        """Exchanges parameters with `partner` and averages."""
        exact = self._exact()
        mine = self._encoded(exact)
        theirs = torch.empty_like(mine)
        size, group, sent = mine.numel() * mine.element_size(), self._connection.group, Pending()
        group.send(mine.data_ptr(), size, partner, done=sent.done)
        group.recv(theirs.data_ptr(), size, partner)
        sent.wait()
        if not self._warned and not bool(theirs.isfinite().all()):
            self._warned = True
            warnings.warn(
                f"rank {partner} has parameters that are not finite, which its partners take on",
                RuntimeWarning,
                stacklevel=3,
            )
        if self._codec == "none":
            self._write((exact + theirs) / 2)
        else:
            self._write(exact + (theirs.float() / 2 - mine.float() / 2))

    def _encoded(self, exact: torch.Tensor) -> torch.Tensor:
        """Returns parameters as they travel.

        # Errors

        InvalidError, and the partner fails too, for a parameter beyond the range of the codec.
        """
        mine = exact.to(CODECS[self._codec])
        beyond = exact[exact.isfinite() & ~mine.isfinite()]
        if beyond.numel():
            error = InvalidError(
                f"a parameter is {beyond[0].item():.6g}, codec {self._codec} holds numbers up to "
                f'{torch.finfo(mine.dtype).max:.6g} (hint: codec="none")'
            )
            self._connection.group.abort(str(error))
            raise error
        return mine

    def _exact(self) -> torch.Tensor:
        """Returns all parameters with their rounding errors."""
        flat = self._flat()
        return flat if self._rest is None else flat + self._rest

    @torch.no_grad()
    def _flat(self) -> torch.Tensor:
        """All parameters, one after the other, as f32 in host memory."""
        return torch.cat([each.detach().reshape(-1).cpu().float() for each in self._parameters])

    @torch.no_grad()
    def _write(self, flat: torch.Tensor) -> None:
        """Sets the parameters from `flat`, and keeps their rounding errors."""
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, values in zip(self._parameters, flat.split(sizes)):
            parameter.copy_(values.view(parameter.shape))
        if any(parameter.dtype != torch.float32 for parameter in self._parameters):
            rest = flat - self._flat()
            self._rest = torch.where(rest.isfinite(), rest, 0.0)
