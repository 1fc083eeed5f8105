"""Rounds in the modes of the core: local SGD, streaming DiLoCo, model averaging and pair averaging.

Each rank trains its own copy of the model, and the copies exchange parameters now and then. What is sent
in a round travels while the next steps compute.

    rounds = thinwire.torch.Rounds(model, "diloco:30,fragments=4,delay=5", codec="int4")
    for batch in data:
        train_step(batch)
        rounds.step()
    rounds.finish()

The modes are those of `thinwire train --mode`. What is exchanged is kept as f32 in host memory: a model in
f16 or bf16 is given it rounded, and what it learns is added to what was not.
"""

from __future__ import annotations

from typing import Any

import torch

from thinwire import arguments
from thinwire._core import Averager, Group, InvalidError
from thinwire.agreement import agree, together
from thinwire.arguments import shown
from thinwire.torch import group as groups
from thinwire.torch import state
from thinwire.torch.replica import begin_alike, expect_no_more, trainable


class Rounds:
    """Exchanges the parameters of ranks that train copies of a model on their own.

    Making one is a collective call: all ranks begin with rank 0's parameters and buffers. Buffers stay
    each rank's own afterwards.

    Args:
        model: the model that the optimizer trains; its parameters f32, f16 or bf16.
        mode: "local:STEPS", "diloco:STEPS,fragments=N,delay=STEPS,alpha=PART,lr=RATE", "sma:PULL" or
            "pair:STEPS".
        codec: how changes of parameters travel, as in `thinwire.torch.hook`, but for "auto"; None is
            "int8", and "none" for pairs.
        group: the ranks, as in `thinwire.torch.hook`.
        bucket_bytes, seed, algorithm, feedback, unchecked, timeout_s, heartbeat_timeout_s: as in
            `thinwire.torch.hook`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mode: str,
        codec: str | None = None,
        group: Any = None,
        *,
        bucket_bytes: int = 1 << 20,
        seed: int = 0,
        algorithm: str | None = None,
        feedback: str = "classic",
        unchecked: bool = False,
        timeout_s: float | None = None,
        heartbeat_timeout_s: float | None = None,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        options = {
            "bucket_bytes": bucket_bytes,
            "seed": seed,
            "algorithm": algorithm,
            "feedback": feedback,
            "unchecked": unchecked,
        }
        arguments.text("mode", mode)
        if codec is None:
            codec = "none" if mode.startswith("pair") else "int8"
        arguments.options(codec=codec, **options)
        self.mode = mode
        self._model = model
        self._parameters = trainable(model)
        self._connection = groups.of(group, timeout_s, heartbeat_timeout_s)
        begin_alike(self._connection.group, model, mode=mode, codec=codec, **options)
        self._exact = {
            name: value.detach().float().cpu().clone(memory_format=torch.contiguous_format)
            for name, value in self._parameters.items()
        }
        self._given = dict(self._rounded())
        described = [(name, list(each.shape), "f32", 0) for name, each in self._exact.items()]
        self._core = Averager(
            self._connection.group, described, self._addresses(), mode, codec=codec, **options
        )

    @property
    def group(self) -> Group:
        """The ranks."""
        return self._connection.group

    def step(self) -> dict[str, float]:
        """Ends a step of the optimizer: begins and ends the rounds that are due.

        Returns the numbers of rounds that have "begun", "ended" and were "skipped", since some rank's
        parameters were not finite, with "wait_s" and "sent_bytes". After a round that was skipped, all
        ranks go back to what they had in common.

        # Errors

        InvalidError if a parameter is trained now that was frozen when ranks began alike.
        """
        if not self._core.is_due():
            return self._core.step(self._addresses())
        expect_no_more(self._connection.group, self._model, self._parameters.values())
        self._follow()
        record = self._core.step(self._addresses())
        if record["ended"]:
            self._take_up()
        return record

    def finish(self) -> dict[str, float]:
        """Gives all ranks the same parameters by a last round, at the end of training; collective."""
        self._follow()
        record = self._core.finish(self._addresses())
        self._take_up()
        return record

    def state_dict(self) -> dict[str, Any]:
        """Returns steps, common parameters, outer optimizer and residuals; a collective call, since rounds
        that are on their way end before.

        The model is not in it. Each rank has a model of its own: save both on every rank.
        """
        self._follow()
        self._core.settle(self._addresses())
        self._take_up()
        progress, raw = self._core.state()
        exact = {f"exact.{name}": value.clone() for name, value in self._exact.items()}
        group = self._connection.group
        return {
            "mode": self.mode,
            "progress": progress,
            "world": group.world,
            f"rank{group.rank}": (state.unpacked(raw), exact),
        }

    @torch.no_grad()
    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned on this rank, before the first step; a collective call.
        The parameters of the model are those of the state afterwards.

        # Errors

        InvalidError on all ranks if on any it is of another mode, model or number of ranks.
        """
        group = self._connection.group
        tensors, exact = together(group, lambda: self._expect(entries))
        agree([f"mode {entries['mode']} in the state"], group)
        self._core.load(entries["progress"], state.packed(tensors), self._addresses())
        for name, value in self._exact.items():
            value.copy_(exact[f"exact.{name}"])
        self._take_up()

    def _expect(self, entries: dict[str, Any]) -> tuple[state.Tensors, state.Tensors]:
        """This rank's part of a state; refuses that of another training."""
        group = self._connection.group
        for name in ("mode", "progress", "world"):
            if name not in entries:
                raise InvalidError(f"the state has no {name}, expected what state_dict gave")
        if (entries["mode"], entries["world"]) != (self.mode, group.world):
            raise InvalidError(
                f"the state is of mode {entries['mode']} on {entries['world']} ranks, this training of "
                f"{self.mode} on {group.world}"
            )
        arguments.text("the progress in the state", entries["progress"])
        entry = entries.get(f"rank{group.rank}")
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise InvalidError(
                f"the state of rank {group.rank} is {shown(entry)}, expected what state_dict gave there"
            )
        tensors, exact = entry
        for name, value in self._exact.items():
            found = exact.get(f"exact.{name}")
            if found is None or found.shape != value.shape:
                shape = None if found is None else list(found.shape)
                raise InvalidError(
                    f"the state has {name} of shape {shape}, the model {list(value.shape)}"
                )
        return tensors, exact

    def _addresses(self) -> list[int]:
        return [value.data_ptr() for value in self._exact.values()]

    @torch.no_grad()
    def _rounded(self) -> dict[str, torch.Tensor]:
        """The parameters of the model in a dtype of less precision, as they are now."""
        parameters = self._parameters.items()
        return {
            name: value.detach().float().cpu().clone()
            for name, value in parameters
            if value.dtype != torch.float32
        }

    @torch.no_grad()
    def _follow(self) -> None:
        """Brings what is exchanged to where the model is."""
        for name, value in self._parameters.items():
            if name in self._given:
                self._exact[name] += value.detach().float().cpu() - self._given[name]
            else:
                self._exact[name].copy_(value)
        self._given = self._rounded()

    @torch.no_grad()
    def _take_up(self) -> None:
        """Gives the model what was exchanged."""
        for name, value in self._parameters.items():
            value.copy_(self._exact[name])
        self._given = self._rounded()
