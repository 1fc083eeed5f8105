"""Thinwire for TensorFlow: data-parallel training with compressed exchange.

Every rank runs the same program, started by `thinwire run`, torchrun, mpirun or srun. In a custom
training loop, adoption is one line after the tape:

    with tf.GradientTape() as tape:
        loss = loss_of(model(inputs), labels)
    tape = thinwire.tensorflow.DistributedGradientTape(tape, codec="int8")
    gradients = tape.gradient(loss, model.trainable_variables)

`exchange` does the same for gradients that already exist. `broadcast_variables` gives all ranks the same
start. All functions work in `tf.function` and in eager mode, on the CPU. On a GPU, values are
copied through host memory, which is untested. For `model.fit` see `thinwire.keras`.
"""

try:
    import tensorflow as _tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"thinwire.tensorflow needs TensorFlow ({error}) (hint: pip install tensorflow)"
    ) from None

from thinwire import deprecated
from thinwire.gradients import guard
from thinwire.residuals import load_residuals, save_residuals

from .collectives import all_gather, all_reduce, broadcast, broadcast_variables
from .exchange import exchange
from .tape import DistributedGradientTape

__all__ = [
    "DistributedGradientTape",
    "all_gather",
    "all_reduce",
    "broadcast",
    "broadcast_variables",
    "exchange",
    "guard",
    "load_residuals",
    "save_residuals",
]

__getattr__ = deprecated.classes(__name__, {"Exchange": ("exchange", "exchange")})
