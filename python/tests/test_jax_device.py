"""Gradients that XLA's handlers for CUDA take: averages are those of the handlers for CPUs, bit for bit.

JAX runs programs on the CPU here, whose calls go through a library that is built with jaxlib's own header.
It puts the handlers' arrays into the memory of a simulated device and gives them a stream, on which all is
late: gradients are computed when the stream comes to it, and memory has other values before and after each
call. A wait that is missing shows as a NaN or as other bits.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import launch

pytestmark = pytest.mark.needs("jax")

KERNELS = Path(__file__).parents[2] / "target" / "kernels"
CODECS = ("none", "int4:stochastic", "powersgd:2", "randomk:0.1")
"""The last one has no kernels, and is staged by the core."""
STEPS, WITH_NAN = 4, 2
BEHIND = 500
"""Copies that the stream has still to do when averages are there: enough of them to see a missing wait."""
FAULTS = {
    "XLA's own": "XLA has given no stream, expected that of a GPU",
    "no stream": "XLA has given no stream, expected that of a GPU",
    "API": "XLA's API has 56 bytes, expected 88 or more",
    "frame": "XLA's call frame has 8 bytes, expected ",
    "another device": "XLA's stream: CUDA error 201 (SIMULATED) (hint: the exchange is on JAX's default",
    "a CPU": "the exchange is in a program for CUDA, expected one for cpu",
}
SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "xla/ffi/api/c_api.h"

enum Fault { NONE, OF_XLA, NO_STREAM, API, FRAME };

static XLA_FFI_Handler *ready, *finish;
static size_t (*allocate)(size_t elements);
static void (*copy)(size_t from, size_t to, size_t elements);
static void (*drain)(void), (*fall_behind)(void);
static void* stream;
static enum Fault fault;

void prepare(void* handlers[2], void* functions[4]) {
  ready = (XLA_FFI_Handler*)handlers[0];
  finish = (XLA_FFI_Handler*)handlers[1];
  allocate = (size_t (*)(size_t))functions[0];
  copy = (void (*)(size_t, size_t, size_t))functions[1];
  drain = (void (*)(void))functions[2];
  fall_behind = (void (*)(void))functions[3];
}

void give(void* given, int wrong) {
  stream = given;
  fault = (enum Fault)wrong;
}

static XLA_FFI_Error* stream_get(XLA_FFI_Stream_Get_Args* args) {
  if (args->struct_size != XLA_FFI_Stream_Get_Args_STRUCT_SIZE || !args->ctx) abort();
  args->stream = fault == NO_STREAM ? NULL : stream;
  return NULL;
}

static size_t elements_of(const XLA_FFI_Buffer* buffer) {
  size_t elements = 1;
  for (int64_t at = 0; at < buffer->rank; at++) elements *= buffer->dims[at];
  return elements;
}

static XLA_FFI_Error* late(XLA_FFI_Handler* handler, XLA_FFI_CallFrame* frame) {
  if (frame->extension_start || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return handler(frame);
  const XLA_FFI_Api* theirs = frame->api;
  size_t size = frame->struct_size;
  XLA_FFI_Api api = *theirs;
  // XLA's own says on a CPU that there is none.
  if (fault != OF_XLA) api.XLA_FFI_Stream_Get = stream_get;
  if (fault == API) api.struct_size = offsetof(XLA_FFI_Api, XLA_FFI_Error_GetMessage);
  if (fault == FRAME) frame->struct_size = sizeof(size_t);
  frame->api = &api;
  int writes = handler == finish;
  XLA_FFI_Buffer** arrays = (XLA_FFI_Buffer**)(writes ? frame->rets.rets : frame->args.args);
  int64_t count = writes ? frame->rets.size : frame->args.size;
  void** host = calloc(count, sizeof(void*));
  size_t* others = calloc(count, sizeof(size_t));
  for (int64_t at = 0; at < count; at++) {
    size_t elements = elements_of(arrays[at]), bytes = 4 * elements;
    size_t values = allocate(elements), device = allocate(elements);
    host[at] = arrays[at]->data;
    others[at] = allocate(elements);
    memset((void*)others[at], 0xff, bytes);
    if (!writes) memcpy((void*)values, host[at], bytes);
    if (!writes) copy(values, device, elements);
    arrays[at]->data = (void*)device;
  }
  // The memory of results is still in use.
  if (writes) fall_behind();
  for (int64_t at = 0; writes && at < count; at++) {
    copy(others[at], (size_t)arrays[at]->data, elements_of(arrays[at]));
  }
  XLA_FFI_Error* error = handler(frame);
  for (int64_t at = 0; at < count; at++) {
    size_t device = (size_t)arrays[at]->data, elements = elements_of(arrays[at]);
    copy(writes ? device : others[at], writes ? others[at] : device, elements);
  }
  drain();
  for (int64_t at = 0; at < count; at++) {
    if (writes) memcpy(host[at], (void*)others[at], 4 * elements_of(arrays[at]));
    arrays[at]->data = host[at];
  }
  free(host);
  free(others);
  frame->struct_size = size;
  frame->api = theirs;
  return error;
}

XLA_FFI_Error* late_ready(XLA_FFI_CallFrame* frame) { return late(ready, frame); }
XLA_FFI_Error* late_finish(XLA_FFI_CallFrame* frame) { return late(finish, frame); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the library."""
    import jax

    from thinwire._core import Cuda

    if not hasattr(Cuda, "simulated"):
        pytest.skip("the package was built without --features simulated")
    if Cuda.simulated(1) is None:
        pytest.skip("no C++ compiler for the kernels of the simulated device")
    folder = tmp_path_factory.mktemp("late")
    (folder / "late.c").write_text(SOURCE)
    made = [folder / "late.c", "-o", folder / "late.so"]
    flags = ["-xc", "-Wall", "-Werror", "-O1", "-fPIC", "-shared", "-I", jax.ffi.include_dir()]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, *made], check=True)
    return str(folder / "late.so")


class Late:
    """The library in this process, through which programs of the CPU call the handlers for CUDA."""

    def __init__(self, path: str, seed: int) -> None:
        import jax

        import thinwire.jax.device as devices
        from thinwire import _core
        from thinwire.jax import handlers

        device = _core.Cuda.simulated(seed)
        assert device is not None
        self.device, self.stream, self.allocated = device, device.new_stream(), 0
        self.spare = device.allocate(1)
        self.library = ctypes.CDLL(path)
        self._functions = [
            ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)(self._allocate),
            ctypes.CFUNCTYPE(None, *[ctypes.c_size_t] * 3)(self._copy),
            ctypes.CFUNCTYPE(None)(self._drain),
            ctypes.CFUNCTYPE(None)(self._fall_behind),
        ]
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        capsules = [each for _, platform, each in _core.xla_handlers() if platform == "CUDA"]
        self.library.prepare(
            (ctypes.c_void_p * 2)(
                *(pointer(each, b"xla._CUSTOM_CALL_TARGET") for each in capsules)
            ),
            (ctypes.c_void_p * 4)(
                *(ctypes.cast(each, ctypes.c_void_p) for each in self._functions)
            ),
        )
        self.give()
        for name in ("late_ready", "late_finish"):
            late = jax.ffi.pycapsule(self.library[name])
            jax.ffi.register_ffi_target(name, late, platform="cpu")
        handlers.READY, handlers.FINISH = "late_ready", "late_finish"
        devices.PLATFORM = "cpu"
        devices.of = lambda place: device

    def give(self, fault: int = 0, stream: int | None = None) -> None:
        """Lets calls have a stream, by default that on which everything is late, and a fault."""
        self.library.give(ctypes.c_void_p(self.stream if stream is None else stream), fault)

    def _allocate(self, elements: int) -> int:
        address: int = self.device.allocate(elements)
        # It is filled with zeros, late as well.
        self.device.synchronize()
        self.allocated += 1
        return address

    def _copy(self, source: int, target: int, elements: int) -> None:
        self.device.queue_copy(source, target, elements, self.stream)

    def _fall_behind(self) -> None:
        for _ in range(BEHIND):
            self._copy(self.spare, self.spare, 1)

    def _drain(self) -> None:
        self.device.after(self.stream)
        self.device.synchronize()


def both(path: str) -> dict[str, list[Any]]:
    """Bits of averages by the handlers for CPUs and by those for CUDA, for each codec."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jax_models as models
    import thinwire
    import thinwire.jax

    group = thinwire.init()
    params = {
        "a": jnp.ones((40, 30)),
        "b": jnp.ones(50, jnp.float16),
        "c": jnp.ones((12, 12), jnp.bfloat16),
        "d": jnp.float32(1.0),
        "e": jnp.ones((0, 3)),
        "layers": jnp.ones((3, 8, 40)),
    }

    def trained(codec: str) -> list[Any]:
        exchange = thinwire.jax.exchange(
            params, codec, warmup_steps=0, bucket_bytes=1024, scanned=["layers"]
        )

        def block(hidden: Any, layer: Any) -> Any:
            weights = exchange.mark(layer[1], layer[0])
            return jnp.tanh(hidden @ weights @ jnp.ones((40, 8)) / 320), None

        def loss(params: Any, inputs: Any) -> Any:
            layers = (jnp.arange(3), params["layers"])
            hidden, _ = jax.lax.scan(block, inputs["layers"][0, :, :8], layers)
            rest = [jnp.sum(jnp.sin(params[name]) * inputs[name]) for name in "abcd"]
            return jnp.sum(hidden) + sum(each.astype("f4") for each in rest)

        @jax.jit
        def step(params: Any, inputs: Any) -> Any:
            averages = exchange(jax.grad(loss)(params, inputs))
            # They have the dtypes of the gradients, whatever XLA computes with them.
            return jax.tree.map(lambda each: each.astype("f4"), averages)

        draw, found = np.random.default_rng(group.rank), []
        for number in range(STEPS):
            inputs = models.drawn(params, draw)
            if (number, group.rank) == (WITH_NAN, 1):
                inputs["a"] = inputs["a"].at[3, 3].set(jnp.nan)
            averages = step(params, inputs)
            every = [bool(jnp.isnan(each).all()) for each in jax.tree.leaves(averages)]
            found.append("NaN" if all(every) else models.bits(averages))
        return found

    told: list[str] = []
    logging.getLogger("thinwire").addFilter(lambda record: bool(told.append(record.getMessage())))
    on_host = {codec: trained(codec) for codec in CODECS}
    late = Late(path, 1 + group.rank)
    found: dict[str, list[Any]] = {}
    for codec in CODECS:
        before = late.allocated
        found[codec] = [on_host[codec], trained(codec), late.allocated > before]
    thinwire._core.settle()
    return {**found, "told": told}


def test_averages_on_a_device_are_those_of_the_cpu(ranks: Any, library: str) -> None:
    first, second = ranks(2, both, arguments=[library], env={"THINWIRE_KERNELS": str(KERNELS)})
    assert first == second
    (told,) = first.pop("told")
    assert told.startswith("codec randomk:0.1 is computed on the CPU: gradients are copied")
    for codec, (on_host, on_device, was_used) in first.items():
        assert on_device == on_host, codec
        assert was_used
        assert [bits == "NaN" for bits in on_host] == [at == WITH_NAN for at in range(STEPS)]


def faults(path: str) -> dict[str, str]:
    """What is said of calls that are not as they should be."""
    import jax
    import jax.numpy as jnp

    import thinwire
    import thinwire.jax
    import thinwire.jax.device as devices
    from thinwire._core import Cuda

    thinwire.init()
    late = Late(path, 1)
    another = Cuda.simulated(2)
    assert another is not None
    calls: dict[str, dict[str, int]] = {name: {"fault": at} for at, name in enumerate(FAULTS, 1)}
    calls["another device"] = {"stream": another.new_stream()}
    calls["a CPU"] = {}
    said = {}
    for name, call in calls.items():
        if name == "a CPU":
            devices.of = lambda place: None
        late.give(**call)
        # With momentum a single rank exchanges, too.
        tree = {"w": jnp.ones(10)}
        exchange = thinwire.jax.exchange(tree, "none", momentum_correction=0.5, warmup_steps=0)
        try:
            jax.block_until_ready(jax.jit(exchange)(tree))
        except jax.errors.JaxRuntimeError as error:
            said[name] = str(error)
        exchange.heard()
    return said


def test_calls_that_are_wrong_are_refused_in_one_line(ranks: Any, library: str) -> None:
    (said,) = ranks(1, faults, arguments=[library], env={"THINWIRE_KERNELS": str(KERNELS)})
    assert said.keys() == FAULTS.keys()
    for name, text in FAULTS.items():
        assert text in said[name] and "INVALID_ARGUMENT" in said[name], said[name]


def lost(path: str) -> list[str]:
    """Errors of rank 0 in two steps after rank 1 was killed."""
    import jax
    import jax.numpy as jnp

    import thinwire
    import thinwire.jax

    group = thinwire.init()
    late = Late(path, 1 + group.rank)
    tree = {"w": jnp.ones(1000)}
    exchange = thinwire.jax.exchange(tree, "int4", group, warmup_steps=0)
    step = jax.jit(exchange)
    jax.block_until_ready(step(tree))
    assert late.allocated
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said = []
    for _ in range(2):
        try:
            with thinwire.jax.guard(exchange):
                jax.block_until_ready(step(tree))
        except thinwire.PeerError as error:
            said.append(str(error))
    return said


def test_a_lost_rank_is_named(library: str) -> None:
    first, _ = launch.run(2, lost, arguments=[library], env={"THINWIRE_KERNELS": str(KERNELS)})
    assert first.code == 0, launch.report(first)
    said, again = first.result
    assert said.startswith("lost rank 1") and said == again, said


class Place:
    """A GPU, as JAX has it."""

    platform, local_hardware_id = "gpu", 99

    def __init__(self, version: str) -> None:
        self.client = argparse.Namespace(platform_version=version)

    def __str__(self) -> str:
        return f"cuda:{self.local_hardware_id}"


def test_a_device_that_cannot_be_used_is_told_once() -> None:
    import thinwire.jax.device as devices

    with pytest.warns(UserWarning, match="gradients on cuda:99 are copied to host memory") as told:
        assert devices.of(Place("PJRT C API\ncuda 12090")) is None
        assert devices.of(Place("PJRT C API\ncuda 12090")) is None
        assert devices.of(Place("PJRT C API\nrocm 60300")) is None
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert "device='host'" in str(told[0].message)
