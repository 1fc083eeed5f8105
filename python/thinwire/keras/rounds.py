"""Rounds in the modes of the core: local SGD, streaming DiLoCo, model averaging and pair averaging.

Each rank trains its own copy of the model, and the copies exchange parameters every few steps. The modes
are those of `thinwire train --mode`.

    rounds = thinwire.keras.Rounds(model, "diloco:30,fragments=4", codec="int4")
    model.compile(keras.optimizers.Adam(1e-3), loss)
    model.fit(data, callbacks=[rounds])

In a custom loop, call `rounds.step()` after each update and `rounds.finish()` at the end instead.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy

from thinwire import arguments
from thinwire._core import InvalidError
from thinwire.agreement import agree, together
from thinwire.gradients import DTYPES
from thinwire.group import Group
from thinwire.meeting import group_or_default
from thinwire.rounds import Arrays, Copy, InPlace, options_of

from .callbacks import give, variables_of


class Rounds(InPlace, keras.callbacks.Callback):
    """Exchanges the parameters of ranks that each train their own copy of a model.

    model: a built model whose trainable variables are float32, float16 or bfloat16. All its weights
    are set to rank 0's.
    mode: "local:STEPS", "diloco:STEPS,fragments=N,delay=STEPS,alpha=PART,lr=RATE", "sma:PULL" or
    "pair:STEPS"; codec: the codec for changes of parameters, by default "int8", and "none" for pairs.
    A collective call. Use a plain Keras optimizer, not a distributed one.
    """

    def __init__(
        self,
        model: keras.Model,
        mode: str,
        codec: str | None = None,
        group: Group | None = None,
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
        self._trained = arguments.instance("model", model, keras.Model)
        core = self.group.core
        variables = together(core, lambda: expect_trainable(model))
        agree([f"mode {mode}", *(f"{name} {each}" for name, each in options.items())], core)
        give(variables_of(model), self.group)
        # Numbers in Keras's names count up in a process, and a rank may have made another model before.
        self.variables = {f"variable {i}": each for i, each in enumerate(variables)}
        rounded = [name for name, each in self.variables.items() if dtype_of(each) != "float32"]
        self.copy = Copy(core, self.read, self.write, rounded, mode, **options)

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses weights that were loaded after the common start."""
        self._expect_as_begun()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends a step of `fit`."""
        self.step()

    def on_train_end(self, logs: Any = None) -> None:
        """Gives all ranks the same parameters."""
        self.finish()

    def read(self) -> Arrays:
        """The parameters as arrays of float32."""
        # On JAX the values of `fit` are elsewhere, until somebody asks for them.
        getattr(self._trained, "jax_state_sync", lambda: None)()
        named = self.variables.items()
        return {name: numpy.asarray(array_of(each), numpy.float32) for name, each in named}

    def write(self, values: Arrays) -> None:
        """Gives the model these parameters."""
        for name, each in self.variables.items():
            # A copy: a backend may use the memory of an array as its own.
            each.assign(numpy.array(values[name]))


def array_of(variable: Any) -> Any:
    """The values of a variable in host memory."""
    return keras.ops.convert_to_numpy(variable)


def dtype_of(variable: Any) -> str:
    """The dtype of a variable."""
    dtype: str = keras.backend.standardize_dtype(variable.dtype)
    return dtype


def expect_trainable(model: keras.Model) -> list[Any]:
    """The variables of a model that its optimizer trains.

    # Errors

    InvalidError if the model is not built, or for other dtypes.
    """
    variables_of(model)
    for each in model.trainable_variables:
        if dtype_of(each) not in DTYPES:
            raise InvalidError(f"{each.path} is {dtype_of(each)}, expected {', '.join(DTYPES)}")
    return list(model.trainable_variables)
