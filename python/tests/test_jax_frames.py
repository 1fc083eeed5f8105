"""The structs of XLA's calls: smaller ones than the handlers read are refused, and those of newer versions,
which have further fields, are accepted."""

from __future__ import annotations

import ctypes

import pytest

from thinwire import _core

pytestmark = pytest.mark.needs("jax")
SIZE, POINTER, INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
EXECUTE = 3


def struct(name: str, *fields: tuple) -> type:
    """A struct of XLA's C interface, which begins with its size and a list of extensions."""
    return type(
        name, (ctypes.Structure,), {"_fields_": [("size", SIZE), ("more", POINTER), *fields]}
    )


VALUES = struct("Values", ("count", ctypes.c_int64), ("kinds", POINTER), ("values", POINTER))
ATTRIBUTES = struct(
    "Attributes",
    ("count", ctypes.c_int64),
    *((each, POINTER) for each in ("kinds", "names", "values")),
)
VERSION = struct("Version", ("major", INT), ("minor", INT))
ERROR = struct("ErrorCreate", ("message", ctypes.c_char_p), ("code", INT))
CREATE = ctypes.CFUNCTYPE(POINTER, ctypes.POINTER(ERROR))
API = struct(
    "Api", ("version", VERSION), ("internal", POINTER), ("create", CREATE), ("rest", POINTER * 20)
)
FRAME = struct(
    "CallFrame",
    ("api", ctypes.POINTER(API)),
    ("context", POINTER),
    ("stage", INT),
    ("arguments", VALUES),
    ("results", VALUES),
    ("attributes", ATTRIBUTES),
    ("future", POINTER),
)
FULL = {
    "call frame": FRAME.future.offset,
    "API": API.create.offset + 5 * ctypes.sizeof(POINTER),
    "arguments": ctypes.sizeof(VALUES),
    "attributes": ctypes.sizeof(ATTRIBUTES),
}


def answer(handler, minor: int = 1, **sizes: int) -> tuple[str, int]:
    """The text and the code of a handler's error, for structs of these sizes."""
    found = {**FULL, **sizes}
    said = []

    def create(error) -> int:
        said.append((error.contents.message.decode(), error.contents.code))
        return 1

    api = API(found["API"], None, VERSION(0, None, 0, minor), None, CREATE(create))
    values = VALUES(found["arguments"], None, 0, None, None)
    attributes = ATTRIBUTES(found["attributes"], None, 0, None, None, None)
    frame = FRAME(
        found["call frame"], None, ctypes.pointer(api), None, EXECUTE, values, values, attributes
    )
    assert handler(ctypes.byref(frame)) == 1
    return said[0]


def handlers() -> list:
    """The handlers of XLA's calls on the CPU, as functions."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = POINTER, [ctypes.py_object, ctypes.c_char_p]
    kind = ctypes.CFUNCTYPE(POINTER, POINTER)
    return [
        kind(pointer(capsule, b"xla._CUSTOM_CALL_TARGET"))
        for _, platform, capsule in _core.xla_handlers()
        if platform == "cpu"
    ]


@pytest.mark.parametrize("handler", handlers(), ids=["ready", "finish"])
def test_smaller_structs_are_refused_and_larger_ones_accepted(handler):
    invalid = 3
    known = ("the call has no attribute 'key' of int32", invalid)
    assert answer(handler) == known
    larger = {name: size + 64 for name, size in FULL.items()}
    assert answer(handler, minor=9, **larger) == known
    for name, size in FULL.items():
        told = f"XLA's {name} has {size - 1} bytes, expected {size} or more (hint: a newer jaxlib)"
        assert answer(handler, **{name: size - 1}) == (told, invalid)
    old = "XLA's API has version 0.0, expected 0.1 or more"
    assert answer(handler, minor=0) == (old, invalid)
