"""The calls in a compiled program: one per bucket that starts, and one that finishes.

XLA runs a call once its operands are computed, so a bucket is sent while backward computes the
gradients of the layers below. `finish` completes a future, so no thread of XLA waits for the
averages. In programs for CUDA, the thread that dispatches the program waits. Ranks may run the
calls in different orders, since buckets are addressed by number. Law: every step that runs makes
exactly one exchange. XLA does not merge, drop or hoist exchanges, and tracing or compiling a
program makes none.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from thinwire import _core
from thinwire._core import InvalidError

READY, FINISH = "thinwire_ready", "thinwire_finish"
TOKEN = jax.ShapeDtypeStruct((), jnp.int32)
OPERATIONS = 1024


def register() -> None:
    """Registers the handlers with XLA.

    # Errors

    InvalidError if the installed jaxlib cannot call them; without this check, JAX would later fail
    to start any backend.
    """
    if not hasattr(jax, "ffi"):
        raise InvalidError(
            f"JAX {jax.__version__}, expected 0.5.3 or later (hint: pip install -U jax)"
        )
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    if header.is_file():
        check(header.read_text(), jax.lib.__version__)
    for name, platform, capsule in _core.xla_handlers():
        jax.ffi.register_ffi_target(name, capsule, platform=platform)


def check(header: str, version: str) -> None:
    """Refuses an interface, as jaxlib's own header describes it, that is not version 0 with
    futures."""
    major = re.search(r"define XLA_FFI_API_MAJOR (\d+)", header)
    if major is not None and int(major[1]) > 0:
        raise InvalidError(
            f"jaxlib {version} has version {major[1]} of XLA's foreign function interface, "
            "expected 0 (hint: a newer thinwire, or an older jaxlib)"
        )
    if "XLA_FFI_Future_SetError" not in header:
        raise InvalidError(
            f"jaxlib {version} has no futures in XLA's foreign function interface, but an exchange "
            "needs them (hint: pip install 'jax>=0.5.3')"
        )


def ready(key: int, bucket: int, gradients: Sequence[jax.Array]) -> jax.Array:
    """Starts the exchange of a bucket, and returns its token."""
    call = jax.ffi.ffi_call(READY, TOKEN, has_side_effect=True)
    return call(*gradients, key=np.int32(key), bucket=np.int32(bucket))


def finish(
    key: int, tokens: Sequence[jax.Array], averages: Sequence[jax.ShapeDtypeStruct]
) -> list[jax.Array]:
    """Returns the averages, once the tokens show that all buckets were started."""
    call = jax.ffi.ffi_call(FINISH, list(averages), has_side_effect=True)
    # JAX runs programs of less than 1000 operations while it dispatches them, deaf to Ctrl-C.
    first = tokens[0].reshape(-1)[0].astype(TOKEN.dtype)
    work = first + jnp.arange(OPERATIONS, dtype=TOKEN.dtype)
    return list(call(*tokens, work, key=np.int32(key)))


def marked(
    started: Callable[[int, Sequence[jax.Array]], jax.Array],
    layers: Sequence[dict[int, list[int]]],
    layer: Any,
    index: Any,
) -> Any:
    """Returns a layer. After backward has computed the layer's gradients, it calls `started` for
    each of the layer's buckets."""

    def start(buckets: dict[int, list[int]], leaves: Sequence[jax.Array]) -> jax.Array:
        given = [started(at, [leaves[place] for place in places]) for at, places in buckets.items()]
        return given[-1]

    def backward(number: jax.Array, gradients: Any) -> Any:
        branches = [functools.partial(start, buckets) for buckets in layers]
        jax.lax.switch(number, branches, jax.tree_util.tree_leaves(gradients))
        return gradients, None

    @jax.custom_vjp
    def same(layer: Any, number: Any) -> Any:
        return layer

    same.defvjp(lambda layer, number: (layer, number), backward)
    return same(layer, index)


def refuse(what: str, hint: str) -> Any:
    """Returns a rule that raises InvalidError."""

    def rule(*_: Any, **__: Any) -> Any:
        raise InvalidError(f"{what} an exchange of gradients (hint: {hint})")

    return rule


def program() -> Any:
    """Returns the outermost program that JAX is lowering, which may contain others; None if it is
    not found."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "lower_jaxpr_to_module":
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("jaxpr")


def calls(program: Any, kept: Any) -> int:
    """Returns the number of calls of an exchange, in a program, that XLA is free to reorder.

    Of several branches, the one with the most calls counts. A loop counts as one iteration, unless
    it is unrolled.
    """
    total = 0
    for equation in program.eqns:
        total += equation.primitive is plain and equation.params["kept"] is kept
        inner = [calls(part, kept) for part in parts(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inner)
        else:
            total += sum(inner) * int(equation.params.get("unroll") or 1)
    return total


def parts(params: dict[str, Any]) -> list[Any]:
    """The programs in an operation: a function that it calls, the body of a loop, branches."""
    listed = [each if isinstance(each, (list, tuple)) else [each] for each in params.values()]
    return [part for each in listed for part in each if hasattr(part, "eqns")]


def lowered(context: Any, *values: Any, platform: str | None, meshed: bool, kept: Any) -> list[Any]:
    """Refuses a program that would exchange more than once in a step, or whose platform is not the
    handlers'. Keeps the exchange alive as long as the program."""
    others = sorted({*context.module_context.platforms} - {platform})
    if platform and others:
        raise InvalidError(
            f"the exchange is in a program for {others[0]}, expected one for {platform}, JAX's default "
            "backend (hint: set JAX_PLATFORMS)"
        )
    whole = program()
    if whole is not None and calls(whole, kept) > 1:
        raise InvalidError(
            "a second call of one exchange in a program, expected one (hint: add the gradients up "
            "first, or loop over steps with jax.lax.scan, without unroll)"
        )
    place = context.module_context.axis_context
    devices = 1 if meshed else getattr(place, "num_devices", 1)
    if getattr(place, "manual_axes", None):
        devices = place.mesh.size
    if devices > 1:
        raise InvalidError(
            f"the exchange is in a program for {devices} devices, expected one (hint: pass mesh= "
            "to thinwire.jax.exchange, and call the exchange outside of jax.shard_map)"
        )
    # A program that was compiled ahead has nothing else of the exchange than its number.
    getattr(context.module_context, "add_keepalive", lambda _: None)(kept)
    return list(values)


# The class in jax.extend.core, which takes longer to import than all of this.
plain = type(jax.lax.add_p)("thinwire_gradients")
"""Primitive that returns its arguments, and refuses transformations under which the exchange would
not be made exactly once per step."""
plain.multiple_results = True
plain.def_impl(lambda *arrays, **_: list(arrays))
plain.def_abstract_eval(lambda *shapes, **_: list(shapes))
mlir.register_lowering(plain, lowered)
batching.primitive_batchers[plain] = refuse(
    "vmap of", "average over the mapped axis first, then exchange once outside of vmap"
)
ad.primitive_jvps[plain] = refuse(
    "derivative of", "take the gradients first, then exchange them outside of jax.grad"
)
register()
