"""CUDA devices that encode the gradients of JAX's programs in their own memory.

XLA gives its stream to the core's handlers, which make this stream and the core's stream wait for
each other. Where the core cannot use a device, `thinwire.jax.callbacks` copies gradients to host
memory.
"""

from __future__ import annotations

from pathlib import Path

import jax

from thinwire import _core, cuda

PLATFORM = "cuda"
"""JAX's name for the platform in programs that it compiles."""
FOUND: dict[int, _core.Cuda | None] = {}
"""Devices by their numbers; None for those that the core cannot use."""


def of(place: jax.Device) -> _core.Cuda | None:
    """Returns the core's device for a JAX device; None if that is not a CUDA device, or the core
    cannot use it."""
    if place.platform != "gpu" or PLATFORM not in place.client.platform_version:
        return None
    number = place.local_hardware_id
    if number not in FOUND:
        libraries = Path(jax.ffi.include_dir()).with_name("lib")
        FOUND[number] = cuda.opened(number, str(place), libraries)
    return FOUND[number]


def default(mesh: jax.sharding.Mesh | None) -> jax.Device:
    """Returns the device that calls an exchange: the first device of a mesh, or JAX's default
    device."""
    if mesh is not None:
        return mesh.devices.flat[0]
    chosen = jax.config.jax_default_device
    # It may be the name of a platform, too.
    return chosen if isinstance(chosen, jax.Device) else jax.local_devices(backend=chosen)[0]
