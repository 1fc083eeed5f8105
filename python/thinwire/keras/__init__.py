"""Thinwire for Keras 3, on TensorFlow, JAX and PyTorch: data-parallel training with compressed exchange.

Every rank runs the same program, started by `thinwire run`, torchrun, mpirun or srun, and trains on its
own part of the data. The optimizer averages gradients over all ranks before its update:

    optimizer = thinwire.keras.distributed(keras.optimizers.Adam(1e-3), codec="int8")
    model.compile(optimizer, loss)
    model.fit(data, callbacks=[thinwire.keras.Broadcast(), thinwire.keras.MetricAverage()])

On links too slow for an exchange in every step, use the callback
`thinwire.keras.Rounds(model, "diloco:30")`. Saved models load without Thinwire. Under mixed_float16
`distributed` must be the outer wrapper:
`distributed(keras.optimizers.LossScaleOptimizer(optimizer))`. Thinwire for Keras runs on the CPU.
On a GPU, gradients are copied through host memory, which is untested.
"""

try:
    import keras as _keras  # noqa: F401
except ImportError as error:
    raise ImportError(f"thinwire.keras needs Keras 3 ({error}) (hint: pip install keras)") from None

from thinwire.gradients import guard
from thinwire.residuals import load_residuals, save_residuals

from .callbacks import Broadcast, MetricAverage, Residuals
from .elastic import Elastic
from .optimizer import distributed
from .rounds import Rounds

__all__ = [
    "Broadcast",
    "Elastic",
    "MetricAverage",
    "Residuals",
    "Rounds",
    "distributed",
    "guard",
    "load_residuals",
    "save_residuals",
]
