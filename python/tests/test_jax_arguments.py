"""What `thinwire.jax` refuses: in one line, on all ranks, before anything is sent."""

from __future__ import annotations

import pytest

import launch
import public_names

pytestmark = pytest.mark.needs("jax", "optax")

REFUSED = {
    "another pytree": "the gradients are a different pytree: it has no b, as the parameters have",
    "one leaf more": "the gradients are a different pytree: it has x, but the parameters have no such leaf",
    "another container": "its leaves are in other containers than the parameters",
    "another shape": "gradient of w is float32[3, 4], its parameter float32[4, 3]",
    "another dtype": "gradient of w is float16[4, 3], its parameter float32[4, 3]",
    "an integer": "gradient of w is int32, expected float32, float16 or bfloat16",
    "a key": "gradient of w is key<fry>, expected float32, float16 or bfloat16",
    "f64": "w is float64, expected float32, float16 or bfloat16",
    "an f64 gradient": "gradient of w is float64, expected float32, float16 or bfloat16",
    "a complex gradient": "gradient of w is complex64, expected float32, float16 or bfloat16",
    "complex": "w is complex64, expected float32, float16 or bfloat16",
    "no array": "w is PjitFunction, expected an array (hint: leave out what is not trained",
    "nothing": "no parameters to exchange, expected a pytree of arrays",
    "traced": "an exchange is made of traced parameters, expected arrays (hint: make it once",
    "other values": "ranks disagree: rank 1 has w of checksum",
    "other names": "ranks disagree: rank 1 has w1 float32[3], rank 0 has w0 float32[3]",
    "on one rank": "rank 1 says: w is int32, expected float32, float16 or bfloat16",
    "an option": "unknown codec 'int9', expected one of none, f16",
    "a device": 'device is "gpu", expected None, which encodes gradients where they are, or "host"',
    "vmap": "vmap of an exchange of gradients (hint: average over the mapped axis first",
    "grad": "derivative of an exchange of gradients (hint: take the gradients first",
    "apply_if_finite": "optax.apply_if_finite around thinwire.jax.averaged leaves out exchanges",
    "MultiSteps": "optax.MultiSteps around thinwire.jax.averaged leaves out exchanges",
    "averaged twice": "the optimizer averages already, expected one without thinwire.jax.averaged",
    "averaged inside": "an optimizer inside of thinwire.jax.averaged averages already",
    "no optimizer": "the optimizer is a float, expected one of optax",
    "jax_debug_nans": "jax_debug_nans is on: it would repeat a step",
    "jax_debug_infs": "jax_debug_infs is on: it would repeat a step",
    "another state": 'the state has "a": 1, expected arrays of ranks',
    "no state": "the state is empty, expected the result of state_dict",
    "a traced broadcast": "params is traced, expected an array (hint: broadcast outside of jax.jit)",
    "a closed group": "the group of this exchange is closed, expected an open one",
    "no subtree": 'scanned has "blocks", but the parameters have no such leaf',
    "no rows": "leaves of w have [(3,), (4,)] rows, expected one for each layer",
    "no mark": "no layer of w was marked, expected exchange.mark in the function that jax.lax.scan",
    "no layer": 'the marked subtree is "b", expected one of []',
    "a second call": "a second call of one exchange in a program, expected one (hint: add the gradients",
    "another platform": "the exchange is in a program for cuda, expected one for cpu, JAX's default",
    "a fork": "the group of this exchange is of the parent process, expected an open one",
}


def errors() -> dict[str, list]:
    """The error of each call."""
    import collections
    import warnings

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import thinwire.jax

    group = thinwire.init()
    params = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    exchange = thinwire.jax.exchange(params, "none", group)
    averaged = thinwire.jax.averaged(optax.sgd(1.0), params, "none", group)
    twice = thinwire.jax.averaged(optax.chain(averaged), params, "none", group)
    scanned = thinwire.jax.exchange(params, "none", group, scanned=["w"])
    closed = thinwire.jax.exchange(params, "none", group.split("closed"))
    closed.group.close()
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), params)

    def make(leaf):
        return thinwire.jax.exchange({"w": leaf}, "none", group)

    def update(optimizer):
        return optimizer.update(params, optimizer.init(params), params)

    def debugging(setting):
        with setting(True):
            exchange(params)

    calls = {
        "another pytree": lambda: exchange({"w": params["w"]}),
        "one leaf more": lambda: exchange({**params, "x": params["w"]}),
        "another container": lambda: exchange(collections.OrderedDict(params)),
        "another shape": lambda: exchange({**params, "w": jnp.ones((3, 4))}),
        "another dtype": lambda: jax.jit(exchange)({**params, "w": jnp.ones((4, 3), jnp.float16)}),
        "an integer": lambda: exchange({**params, "w": jnp.ones((4, 3), int)}),
        "a key": lambda: exchange({**params, "w": jax.random.key(0)}),
        "f64": lambda: make(np.ones(3)),
        "an f64 gradient": lambda: exchange({**params, "w": np.ones((4, 3))}),
        "a complex gradient": lambda: exchange({**params, "w": jnp.ones((4, 3), complex)}),
        "complex": lambda: make(jnp.ones(3, complex)),
        "no array": lambda: make(jnp.tanh),
        "nothing": lambda: thinwire.jax.exchange({}, "none", group),
        "traced": lambda: jax.jit(lambda tree: make(tree))(jnp.ones(3)),
        "other values": lambda: make(jnp.ones(3) * group.rank),
        "other names": lambda: thinwire.jax.exchange(
            {f"w{group.rank}": jnp.ones(3)}, "none", group
        ),
        "on one rank": lambda: make(jnp.ones(3, int) if group.rank else jnp.ones(3)),
        "an option": lambda: thinwire.jax.exchange(params, "int9", group),
        "a device": lambda: thinwire.jax.exchange(params, "none", group, device="gpu"),
        "vmap": lambda: jax.vmap(exchange)(stacked),
        "grad": lambda: jax.grad(lambda tree: jnp.sum(jax.jit(exchange)(tree)["w"]))(params),
        "apply_if_finite": lambda: update(optax.apply_if_finite(averaged, 3)),
        "MultiSteps": lambda: update(optax.MultiSteps(averaged, 2)),
        "averaged twice": lambda: thinwire.jax.averaged(averaged, params),
        "averaged inside": lambda: update(twice),
        "no optimizer": lambda: thinwire.jax.averaged(0.1, params),
        "jax_debug_nans": lambda: debugging(jax.debug_nans),
        "jax_debug_infs": lambda: debugging(jax.debug_infs),
        "another state": lambda: exchange.load_state_dict({"a": 1}),
        "no state": lambda: exchange.load_state_dict({}),
        "a traced broadcast": lambda: jax.jit(thinwire.jax.broadcast)(jnp.ones(3)),
        "a closed group": lambda: closed(params),
        "no subtree": lambda: thinwire.jax.exchange(params, "none", group, scanned=["blocks"]),
        "no rows": lambda: thinwire.jax.exchange(
            {"w": {"a": jnp.ones((4, 3)), "b": jnp.ones(3)}}, "none", group, scanned=["w"]
        ),
        "no mark": lambda: jax.jit(scanned)(params),
        "no layer": lambda: exchange.mark(params["b"], 0, "b"),
        "a second call": lambda: jax.jit(lambda tree: exchange(exchange(tree)))(params),
        "another platform": lambda: (
            jax.jit(exchange).trace(params).lower(lowering_platforms=("cuda",))
        ),
        "a fork": lambda: raised_in_a_fork(lambda: exchange(params)),
    }
    answers = {}
    for name, call in calls.items():
        try:
            call()
            answers[name] = ["nothing", ""]
        except Exception as error:
            answers[name] = [type(error).__name__, str(error)]
    # Nothing was sent: a step goes as ever.
    answers["sum"] = float(jnp.sum(exchange(params)["w"]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thinwire.jax.exchange(params, "v=none,*=int8", group)
    answers["warned"] = [str(each.message) for each in told]
    return answers


def raised_in_a_fork(call) -> None:
    """Raises what `call` raises in a fork of this process."""
    import os
    import warnings

    import thinwire

    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of every fork
        child = os.fork()
    if child == 0:
        try:
            call()
        except thinwire.InvalidError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    raise thinwire.InvalidError(os.read(reading, 1000).decode())


def test_mistakes_are_refused_in_one_line(ranks):
    for rank, answers in enumerate(ranks(2, errors)):
        assert answers.pop("sum") == 12.0
        said = "codec v=none: v matches no parameter; their names are such as "
        assert [each.startswith(said) for each in answers.pop("warned")] == [True] * (rank == 0)
        assert answers.keys() == REFUSED.keys()
        for name, (kind, text) in answers.items():
            said = REFUSED[name].removeprefix("rank 1 says: " if rank == 1 else "")
            assert (kind, said in text, "\n" in text) == ("InvalidError", True, False), (
                name,
                kind,
                text,
            )


@pytest.mark.parametrize("module", ["jax", "keras", "tensorflow"])
@pytest.mark.needs("jax", "optax", "keras", "tensorflow")
def test_public_names_are_those_of_before(module):
    public_names.expect_as_before(f"thinwire.{module}")


@pytest.mark.parametrize("name", ["jax.Averaged", "jax.Exchange", "tensorflow.Exchange"])
@pytest.mark.needs("jax", "optax", "tensorflow")
def test_classes_beside_their_functions_warn(name):
    public_names.expect_class_to_warn(f"thinwire.{name}")


def versions() -> list:
    """What is said of headers of other versions of jaxlib."""
    import thinwire.jax
    from thinwire.jax import handlers

    answers = []
    for header in ("#define XLA_FFI_API_MAJOR 1\n", "#define XLA_FFI_API_MAJOR 0\n"):
        try:
            handlers.check(header, "9.9")
        except thinwire.InvalidError as error:
            answers.append(str(error))
    return answers


def of_another_jaxlib(which: str) -> list:
    """What importing says of a jaxlib with another header, or a JAX without one; and the backends."""
    import tempfile
    from pathlib import Path

    import jax
    from jax._src import xla_bridge

    import thinwire

    header = Path(tempfile.mkdtemp(), "xla", "ffi", "api", "c_api.h")
    header.parent.mkdir(parents=True)
    header.write_text(f"#define XLA_FFI_API_MAJOR {int(which == 'new')}\n")
    if which == "none":
        del jax.ffi
    else:
        jax.ffi.include_dir = lambda: str(header.parents[3])
    try:
        import thinwire.jax
    except thinwire.InvalidError as error:
        return [str(error), len(xla_bridge._backends)]
    return []


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("new", "has version 1 of XLA's foreign function interface, expected 0"),
        ("old", "has no futures in XLA's foreign function interface, but an exchange needs them"),
        ("none", "expected 0.5.3 or later"),
    ],
)
def test_importing_names_it_before_a_backend_starts(ranks, which, said):
    ((text, backends),) = ranks(1, of_another_jaxlib, arguments=[which], env=launch.ANEW)
    assert said in text and "\n" not in text
    assert backends == 0


def imported() -> list[str]:
    """What importing brings besides JAX."""
    import sys

    import jax  # noqa: F401

    before = set(sys.modules)
    import thinwire.jax  # noqa: F401

    return sorted(set(sys.modules) - before)


def test_importing_brings_little_besides_jax(ranks):
    (found,) = ranks(1, imported, env=launch.ANEW)
    strange = [name for name in found if not name.startswith("thinwire")]
    lazy = ("thinwire.elastic", "thinwire.jax.elastic", "thinwire.jax.rounds", "thinwire.gradients")
    assert [name for name in found if name.startswith(lazy)] == []
    assert len(strange) < 10, strange


def test_a_jaxlib_that_cannot_call_the_handlers_is_named(ranks):
    ((new, old),) = ranks(1, versions)
    assert new.startswith(
        "jaxlib 9.9 has version 1 of XLA's foreign function interface, expected 0"
    )
    assert old.startswith("jaxlib 9.9 has no futures in XLA's foreign function interface")
