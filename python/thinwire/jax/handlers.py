"""The calls in a compiled program: one per bucket that starts, and one that finishes.

XLA runs a call once its operands are computed, so a bucket travels while backward computes the gradients of
the layers below. `finish` completes a future, so no thread of XLA's waits meanwhile. Ranks may run the
calls in different orders, since buckets are addressed by number. Law: one exchange per step that runs; none
is merged, dropped or hoisted, and none happens while a program is traced or compiled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from thinwire import _core
from thinwire._core import InvalidError

READY, FINISH = "thinwire_ready", "thinwire_finish"
TOKEN = jax.ShapeDtypeStruct((), jnp.int32)
OPERATIONS = 1024


def register() -> None:
    """Makes the handlers known to XLA.

    # Errors

    InvalidError where the installed jaxlib cannot call them: later, JAX would start no backend at all.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    if header.is_file():
        check(header.read_text(), jax.lib.__version__)
    for name, capsule in _core.xla_handlers():
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")


def check(header: str, version: str) -> None:
    """Refuses the interface that jaxlib's own header describes, unless it is version 0 with futures."""
    major = re.search(r"define XLA_FFI_API_MAJOR (\d+)", header)
    if major is not None and int(major[1]) > 0:
        raise InvalidError(
            f"jaxlib {version} has version {major[1]} of XLA's foreign function interface, expected 0 "
            "(hint: a newer thinwire, or an older jaxlib)"
        )
    if "XLA_FFI_Future_SetError" not in header:
        raise InvalidError(
            f"jaxlib {version} has no futures in XLA's foreign function interface, expected them "
            "(hint: pip install 'jax>=0.5.3')"
        )


def ready(key: int, bucket: int, gradients: Sequence[jax.Array]) -> jax.Array:
    """Starts the exchange of a bucket; its token."""
    call = jax.ffi.ffi_call(READY, TOKEN, has_side_effect=True)
    return call(*gradients, key=np.int32(key), bucket=np.int32(bucket))


def finish(
    key: int, tokens: Sequence[jax.Array], averages: Sequence[jax.ShapeDtypeStruct]
) -> list[jax.Array]:
    """Takes the tokens of all buckets, and returns the averages."""
    call = jax.ffi.ffi_call(FINISH, list(averages), has_side_effect=True)
    # JAX runs programs of less than 1000 operations while it dispatches them, deaf to Ctrl-C.
    work = tokens[0] + jnp.arange(OPERATIONS, dtype=TOKEN.dtype)
    return list(call(*tokens, work, key=np.int32(key)))


def refuse(what: str, hint: str) -> Any:
    """A rule that raises InvalidError."""

    def rule(*_: Any, **__: Any) -> Any:
        raise InvalidError(f"{what} an exchange of gradients (hint: {hint})")

    return rule


plain = Primitive("thinwire_gradients")
"""Returns its arguments, and refuses what would exchange other gradients than those of one step."""
plain.multiple_results = True
plain.def_impl(lambda *arrays: list(arrays))
plain.def_abstract_eval(lambda *shapes: list(shapes))
mlir.register_lowering(plain, lambda _, *values: list(values))
batching.primitive_batchers[plain] = refuse(
    "vmap of", "average over the mapped axis first, then exchange once outside of vmap"
)
ad.primitive_jvps[plain] = refuse(
    "derivative of", "take the gradients first, then exchange them outside of jax.grad"
)
register()
