"""Thinwire for JAX.

    import thinwire.jax

    params = thinwire.jax.broadcast(params)                                     # rank 0's everywhere
    optimizer = thinwire.jax.averaged(optax.adamw(1e-3), params, codec="int8")  # for optax
    exchange = thinwire.jax.exchange(params, codec="int8")                      # exchange(gradients)
    with thinwire.jax.guard(optimizer): ...                                     # errors of one line

Optimizer and exchange work inside `jax.jit` and outside of it. Importing this registers two
handlers with XLA.

    rounds = thinwire.jax.Rounds(params, "diloco:30,fragments=4")   # params = rounds.step(params)
    elastic = thinwire.jax.Elastic(state, params, batch=512)        # ranks come and go

`Rounds` and `Elastic` exchange between compiled steps.
"""

from typing import TYPE_CHECKING

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"thinwire.jax needs JAX ({error}) (hint: pip install jax)") from None

from thinwire import deprecated
from thinwire.jax.broadcast import broadcast
from thinwire.jax.exchange import exchange
from thinwire.jax.guard import guard

if TYPE_CHECKING:
    from thinwire.jax.elastic.job import Elastic
    from thinwire.jax.optimizer import averaged
    from thinwire.jax.rounds import Rounds

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
_PLACES = {"Elastic": "elastic.job", "Rounds": "rounds", "averaged": "optimizer"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        return _class(name)
    # Not every program uses these, and optax alone takes longer to import than all the rest.
    from importlib import import_module

    module = import_module(f"thinwire.jax.{_PLACES[name]}")
    return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
