"""Thinwire for JAX.

    import thinwire.jax

    params = thinwire.jax.broadcast(params)                                     # rank 0's everywhere
    optimizer = thinwire.jax.averaged(optax.adamw(1e-3), params, codec="int8")  # for optax
    exchange = thinwire.jax.exchange(params, codec="int8")                      # exchange(gradients)
    with thinwire.jax.guard(optimizer): ...                                     # errors of one line

Both work inside `jax.jit` and outside of it. Importing this registers two handlers with XLA.

    rounds = thinwire.jax.Rounds(params, "diloco:30,fragments=4")   # params = rounds.step(params)
    elastic = thinwire.jax.Elastic(state, params, batch=512)        # ranks come and go

These two exchange between compiled steps.
"""

from typing import TYPE_CHECKING

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"thinwire.jax needs JAX ({error}) (hint: pip install jax)") from None

from thinwire import deprecated
from thinwire.jax.broadcast import broadcast
from thinwire.jax.elastic.job import Elastic
from thinwire.jax.exchange import exchange
from thinwire.jax.guard import guard
from thinwire.jax.rounds import Rounds

if TYPE_CHECKING:
    from thinwire.jax.optimizer import averaged

__all__ = [
    "Elastic",
    "Rounds",
    "averaged",
    "broadcast",
    "exchange",
    "guard",
]


_class = deprecated.classes(
    __name__,
    {"Averaged": ("optimizer", "averaged"), "Exchange": ("exchange", "exchange")},
    stacklevel=4,
)


def __getattr__(name: str) -> object:
    if name != "averaged":
        return _class(name)
    # optax takes longer to import than the rest, and not every program uses it.
    from importlib import import_module

    return globals().setdefault(name, import_module("thinwire.jax.optimizer").averaged)
