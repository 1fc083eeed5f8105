"""Rounds in the modes of the core: local SGD, streaming DiLoCo, model averaging and pair averaging.

Each rank trains its own copy of the model, and the copies exchange parameters every few steps. The data
of a round is sent while the next steps compute.

    rounds = thinwire.torch.Rounds(model, "diloco:30,fragments=4,delay=5", codec="int4")
    for batch in data:
        train_step(batch)
        rounds.step()
    rounds.finish()

The modes are those of `thinwire train --mode`. The exchanged values are kept as f32 in host memory.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from thinwire._core import Group, InvalidError
from thinwire.agreement import agree, together
from thinwire.arguments import Seconds, shown
from thinwire.rounds import Arrays, Copy, options_of
from thinwire.torch import group as groups
from thinwire.torch import state
from thinwire.torch.replica import begin_alike, expect_no_more, trainable


class Rounds:
    """Exchanges the parameters of ranks that each train their own copy of a model.

    Creating one is a collective call: all ranks begin with rank 0's parameters and buffers.
    Afterwards, each rank keeps its own buffers.

    Args:
        model: the model that the optimizer trains; its parameters f32, f16 or bf16.
        mode: "local:STEPS", "diloco:STEPS,fragments=N,delay=STEPS,alpha=PART,lr=RATE", "sma:PULL" or
            "pair:STEPS".
        codec: the codec for changes of parameters, as in `thinwire.torch.hook` except "auto"; None
            means "int8", and "none" for pairs.
        group: the ranks, as in `thinwire.torch.hook`.
        bucket_bytes, seed, algorithm, feedback, unchecked, timeout_s, heartbeat_timeout_s: as in
            `thinwire.torch.hook`.

    # Errors

    InvalidError from the first step of an optimizer if weights were loaded after `Rounds` was made.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mode: str,
        codec: str | None = None,
        group: Any = None,
        *,
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
        algorithm: str | None = None,
        feedback: str = "classic",
        unchecked: bool = False,
        timeout_s: Seconds | None = None,
        heartbeat_timeout_s: Seconds | None = None,
    ) -> None:
        """Forms the group and gives all ranks the model of rank 0."""
        options = options_of(
            mode,
            codec,
            bucket_bytes=bucket_bytes,
            seed=seed,
            algorithm=algorithm,
            feedback=feedback,
            unchecked=unchecked,
        )
        self.mode = mode
        self._model = model
        self._parameters = trainable(model)
        self._connection = groups.of(group, timeout_s, heartbeat_timeout_s)
        begin_alike(self._connection.group, model, mode=mode, **options)
        named = self._parameters.items()
        rounded = [name for name, value in named if value.dtype != torch.float32]
        self._copy = Copy(self.group, self._read, self._write, rounded, mode, **options)
        begins = weakref.WeakMethod(self._begins)

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if (method := begins()) is not None:
                method(optimizer)

        self._first = optimizers.register_optimizer_step_pre_hook(before)
        weakref.finalize(self, self._first.remove)

    def _begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuses, before the first step of the model's optimizer, weights that were loaded after the
        common start."""
        theirs = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if theirs.isdisjoint(map(id, self._parameters.values())):
            return
        try:
            self._copy.expect_as_begun()
        except InvalidError as error:
            self.group.abort(str(error))
            raise
        self._first.remove()

    @property
    def group(self) -> Group:
        """The ranks."""
        return self._connection.group

    def step(self) -> dict[str, float]:
        """Ends a step of the optimizer: begins and ends the rounds that are due.

        Returns a dict with the numbers of rounds that have "begun" and "ended", and that were "skipped"
        because some rank's parameters were not finite, and with "wait_s" and "sent_bytes". After a
        skipped round, all ranks return to the last parameters that they had in common.

        # Errors

        InvalidError if a parameter that was frozen at the common start is now trained.
        """
        if self._copy.is_due:
            expect_no_more(self.group, self._model, self._parameters.values())
        return self._copy.step()

    def finish(self) -> dict[str, float]:
        """Gives all ranks the same parameters by a last round, at the end of training; collective."""
        return self._copy.finish()

    def state_dict(self) -> dict[str, Any]:
        """Returns steps, common parameters, outer optimizer and residuals; a collective call, since
        rounds under way are ended first.

        The model is not in it. Each rank has its own model: save both on every rank.
        """
        progress, raw, exact = self._copy.state()
        tensors = {name: torch.from_numpy(each) for name, each in exact.items()}
        return {
            "mode": self.mode,
            "progress": progress,
            "world": self.group.world,
            f"rank{self.group.rank}": (state.unpacked(raw), tensors),
        }

    def load_state_dict(self, entries: dict[str, Any]) -> None:
        """Continues from what `state_dict` returned on this rank, before the first step; a collective call.
        Afterwards the model has the parameters of the state.

        # Errors

        InvalidError on all ranks if the state of any rank is of a different mode, model or number of ranks.
        """
        tensors, exact = together(self.group, lambda: self._expect(entries))
        agree([f"mode {entries['mode']} in the state"], self.group)
        self._copy.load(entries["progress"], state.packed(tensors), exact)

    def _expect(self, entries: dict[str, Any]) -> tuple[state.Tensors, Arrays]:
        """Returns this rank's part of a state; refuses the state of another training."""
        for name in ("mode", "progress", "world"):
            if name not in entries:
                raise InvalidError(f"the state has no {name}, expected the result of state_dict")
        group = self.group
        if (entries["mode"], entries["world"]) != (self.mode, group.world):
            raise InvalidError(
                f"the state is of mode {entries['mode']} on {entries['world']} ranks, this "
                f"training is of mode {self.mode} on {group.world}"
            )
        entry = entries.get(f"rank{group.rank}")
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise InvalidError(
                f"the state of rank {group.rank} is {shown(entry)}, expected the result of "
                "state_dict on that rank"
            )
        tensors, exact = entry
        arrays = {name: each.float().cpu().numpy() for name, each in exact.items()}
        self._copy.check(entries["progress"], arrays)
        return tensors, arrays

    @torch.no_grad()
    def _read(self) -> Arrays:
        """The parameters as arrays of f32."""
        named = self._parameters.items()
        return {name: value.detach().float().cpu().numpy() for name, value in named}

    @torch.no_grad()
    def _write(self, values: Arrays) -> None:
        """Gives the model these parameters."""
        for name, value in self._parameters.items():
            value.copy_(torch.from_numpy(values[name]))
