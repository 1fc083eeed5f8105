"""Rounds in the modes of the core: local SGD, streaming DiLoCo, model averaging and pair averaging.

Each rank trains its own copy of the network, and the copies exchange parameters every few steps. The
modes are those of `thinwire train --mode`.

    rounds = thinwire.mindspore.Rounds(network.trainable_params(), "diloco:30,fragments=4", codec="int4")
    model.train(epochs, data, callbacks=[rounds], dataset_sink_mode=False)

In a custom loop, call `rounds.step()` after each update and `rounds.finish()` at the end instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mindspore as ms
from mindspore import ops

import thinwire
from thinwire.agreement import agree
from thinwire.meeting import group_or_default
from thinwire.rounds import Arrays, Copy, InPlace, options_of

from .broadcast import broadcast_parameters
from .parameters import described_one


class Rounds(InPlace, ms.Callback):
    """Exchanges the parameters of ranks that each train their own copy of a network.

    parameters: float32, float16 or bfloat16; they are set to rank 0's values; mode: "local:STEPS",
    "diloco:STEPS,fragments=N,delay=STEPS,alpha=PART,lr=RATE", "sma:PULL" or "pair:STEPS"; codec:
    the codec for their changes, by default "int8", and "none" for pairs. A collective call.
    """

    def __init__(
        self,
        parameters: Iterable[ms.Parameter],
        mode: str,
        codec: str | None = None,
        group: thinwire.Group | None = None,
        *,
        bucket_bytes: int = 1 << 20,
        seed: int = 1,
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

    def on_train_begin(self, run_context: Any) -> None:
        """Refuses weights that were loaded after the common start."""
        self._expect_as_begun()

    def on_train_step_end(self, run_context: Any) -> None:
        """Ends a step of `Model.train`."""
        self.step()

    def on_train_end(self, run_context: Any) -> None:
        """Gives all ranks the same parameters."""
        self.finish()

    def read(self) -> Arrays:
        """The parameters as arrays of float32."""
        named = self.parameters.items()
        return {name: each.astype(ms.float32).asnumpy() for name, each in named}

    def write(self, values: Arrays) -> None:
        """Gives the network these parameters."""
        for name, each in self.parameters.items():
            ops.assign(each, ms.Tensor(values[name]).astype(each.dtype))
