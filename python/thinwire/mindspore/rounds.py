"""Rounds in the modes of the core: local SGD, streaming DiLoCo, model averaging and pair averaging.

Each rank trains its own copy of the network, and the copies exchange parameters now and then. The modes are
those of `thinwire train --mode`.

    rounds = thinwire.mindspore.Rounds(network.trainable_params(), "diloco:30,fragments=4", codec="int4")
    model.train(epochs, data, callbacks=[rounds], dataset_sink_mode=False)

In a loop of one's own, `rounds.step()` after each update and `rounds.finish()` in the end do the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mindspore as ms
from mindspore import ops

import thinwire
from thinwire.agreement import agree, together
from thinwire.meeting import group_or_default
from thinwire.rounds import Arrays, Copy, options_of

from .broadcast import broadcast_parameters
from .parameters import described_one


class Rounds(ms.Callback):
    """Exchanges the parameters of ranks that train copies of a network on their own.

    parameters: float32, float16 or bfloat16, which begin as rank 0's; mode: "local:STEPS",
    "diloco:STEPS,fragments=N,delay=STEPS,alpha=PART,lr=RATE", "sma:PULL" or "pair:STEPS"; codec: how their
    changes travel, "int8" unless it is given, and "none" for pairs. A collective call.
    """

    def __init__(
        self,
        parameters: Iterable[ms.Parameter],
        mode: str,
        codec: str | None = None,
        group: thinwire.Group | None = None,
        *,
        bucket_bytes: int = 1 << 20,
        seed: int = 0,
        algorithm: str | None = None,
        feedback: str = "classic",
        unchecked: bool = False,
    ) -> None:
        super().__init__()
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
        self.group = group_or_default(group)
        self.parameters = {each.name: each for each in parameters}
        for each in self.parameters.values():
            described_one(each)
        agree(
            [f"mode {mode}", *(f"{name} {each}" for name, each in options.items())], self.group.core
        )
        broadcast_parameters(self.parameters.values(), self.group)
        rounded = [name for name, each in self.parameters.items() if each.dtype != ms.float32]
        self.copy = Copy(self.group.core, self.read, self.write, rounded, mode, **options)

    def on_train_step_end(self, run_context: Any) -> None:
        """Ends a step of `Model.train`."""
        self.step()

    def on_train_end(self, run_context: Any) -> None:
        """Gives all ranks the same parameters."""
        self.finish()

    def step(self) -> dict[str, float]:
        """Ends a step: begins and ends the rounds that are due.

        Returns the numbers of rounds that have "begun", "ended" and were "skipped", since some rank's
        parameters were not finite, with "wait_s" and "sent_bytes".
        """
        return self.copy.step()

    def finish(self) -> dict[str, float]:
        """Gives all ranks the same parameters by a last round, at the end of training; collective."""
        return self.copy.finish()

    def state(self) -> dict[str, Any]:
        """What this rank continues from beside the parameters, in text and NumPy arrays; a collective call,
        since rounds that are on their way end before."""
        progress, tensors, exact = self.copy.state()
        return {"mode": self.mode, "progress": progress, "tensors": tensors, "exact": exact}

    def load(self, state: dict[str, Any]) -> None:
        """Continues from what `state` returned on this rank, before the first step; a collective call.

        Raises InvalidError on all ranks if on any it is of another mode or network."""

        def check() -> None:
            if state.get("mode") != self.mode:
                raise thinwire.InvalidError(
                    f"the state is of mode {state.get('mode')}, this training of {self.mode}"
                )
            self.copy.check(state["progress"], state["exact"])

        together(self.group.core, check)
        self.copy.load(state["progress"], state["tensors"], state["exact"])

    def read(self) -> Arrays:
        """The parameters as arrays of float32."""
        named = self.parameters.items()
        return {name: each.astype(ms.float32).asnumpy() for name, each in named}

    def write(self, values: Arrays) -> None:
        """Gives the network these parameters."""
        for name, each in self.parameters.items():
            ops.assign(each, ms.Tensor(values[name]).astype(each.dtype))
