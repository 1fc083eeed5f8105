"""Failures of exchanges in compiled programs: every rank ends, soon, with one line that says why."""

from __future__ import annotations

import pytest

import launch

pytestmark = pytest.mark.needs("jax")

LIMIT_S = 50.0
"""Less than the minute after which a rank gives up by itself."""


def training(group):
    """A step of some milliseconds that exchanges, and its parameters after a first one."""
    import jax

    import thinwire.jax

    params = {"w": jax.numpy.ones((128, 128))}
    exchange = thinwire.jax.exchange(params, "none", group)

    @jax.jit
    def step(params):
        gradients = jax.tree.map(lambda x: jax.numpy.tanh(x @ x), params)
        return jax.tree.map(lambda x, y: x - 1e-3 * y, params, exchange(gradients))

    return exchange, step, jax.block_until_ready(step(params))


def other_fails(way: str) -> list:
    """Rank 1 comes to a bad end in its sixth step; the errors of rank 0 in that step and in the next."""
    import contextlib
    import os
    import signal
    import time

    import jax
    import numpy

    import thinwire.jax

    group = thinwire.init(heartbeat_timeout_s=2)
    processes = group.all_gather(numpy.array([os.getpid()]))
    exchange, step, params = training(group)
    start = time.monotonic()
    errors = []
    for _ in range(2):
        try:
            with thinwire.jax.guard(exchange):
                for at in range(20):
                    if (group.rank, at) == (1, 5):
                        if way == "killed":
                            os.kill(os.getpid(), signal.SIGKILL)
                        if way == "stopped":
                            os.kill(os.getpid(), signal.SIGSTOP)
                        raise ValueError("no such file: data.txt")
                    params = jax.block_until_ready(step(params))
        except thinwire.Error as error:
            errors.append([type(error).__name__, str(error)])
    with contextlib.suppress(ProcessLookupError):
        os.kill(processes[1], signal.SIGKILL)  # it may be stopped
    return [*errors, time.monotonic() - start]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("raised", "rank 1 raised ValueError: no such file: data.txt"),
        ("killed", "lost rank 1"),
        ("stopped", "lost rank 1: silent for"),
    ],
)
def test_ranks_learn_in_one_line_why_another_has_failed(way, said):
    first, second = launch.run(2, other_fails, arguments=[way])
    assert second.code != 0
    *errors, waited_s = first.result
    assert waited_s < LIMIT_S
    assert len(errors) == 2, "a step after a failure raises before it is dispatched"
    assert errors[0] == errors[1]
    assert errors[0][0] == "PeerError"
    assert said in errors[0][1]
    assert "\n" not in errors[0][1]


UNREAD = """
import gc
{first}
{second}
import jax.numpy as jnp
import thinwire.jax

group = thinwire.init(heartbeat_timeout_s=2)

def main():
    exchange = thinwire.jax.exchange({{"w": jnp.ones((128, 128))}}, "none", group)
    step = jax.jit(lambda tree: exchange(jax.tree.map(lambda x: jnp.tanh(x @ x), tree)))
    tree = {{"w": jnp.ones((128, 128))}}
    for _ in range({steps}):
        tree = step(tree)

main()
jax.clear_caches()
gc.collect()  # nothing of the exchange is left
"""


@pytest.mark.parametrize(
    "order", [("import jax", "import thinwire"), ("import thinwire", "import jax")]
)
def test_steps_that_nobody_has_read_are_finished_at_exit(tmp_path, order):
    script = tmp_path / "unread.py"
    script.write_text(UNREAD.format(first=order[0], second=order[1], steps=20))
    for outcome in launch.run(2, script, env=launch.ANEW):
        assert (outcome.code, outcome.stderr) == (0, ""), launch.report(outcome)


def test_a_step_that_fails_unread_fails_the_program(tmp_path):
    script = tmp_path / "fewer.py"
    steps = "20 if group.rank == 0 else 10"
    script.write_text(UNREAD.format(first="import jax", second="import thinwire", steps=steps))
    first, second = launch.run(2, script)
    assert (second.code, second.stderr) == (0, "")
    assert first.code == 1
    (line,) = first.stderr.splitlines()
    assert line.startswith("thinwire: a step has failed: lost rank 1: it left before this was done")


def interrupted(where: str) -> list:
    """Rank 0 is interrupted while it waits; rank 1 does not come before it has heard of that."""
    import contextlib
    import os
    import signal
    import threading

    import jax

    import thinwire.jax

    group = thinwire.init()
    other = group.split("other")
    exchange, step, params = training(group)
    if group.rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    else:
        with contextlib.suppress(thinwire.PeerError):
            other.barrier()  # to which rank 0 never comes
    try:
        with thinwire.jax.guard(exchange):
            jax.block_until_ready(step(params) if where == "in a step" else exchange(params))
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return []


@pytest.mark.parametrize("where", ["in a step", "outside"])
def test_an_interrupt_ends_a_wait_and_is_told(where):
    first, second = launch.run(2, interrupted, arguments=[where])
    assert first.result[0] == "KeyboardInterrupt", launch.report(first)
    assert second.result[:1] == ["PeerError"], launch.report(second)
    assert "rank 0 raised KeyboardInterrupt" in second.result[1]


def raised_after(error: str) -> list:
    """What leaves the guard, and its cause, if the program raises after a step that has failed."""
    import builtins
    import contextlib

    import jax

    import thinwire.jax

    group = thinwire.init()
    params = {"w": jax.numpy.ones(3)}
    # With momentum a single rank exchanges, too.
    exchange = thinwire.jax.exchange(params, "none", momentum_correction=0.5, warmup_steps=0)
    try:
        with thinwire.jax.guard(exchange):
            group.abort("the end")
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                jax.block_until_ready(jax.jit(exchange)(params))
            raise getattr(builtins, error)("no label 11")
    except BaseException as caught:
        return [type(caught).__name__, repr(caught.__cause__)]


@pytest.mark.parametrize(
    ("error", "left"),
    [
        ("ValueError", ["PeerError", "ValueError('no label 11')"]),
        ("KeyboardInterrupt", ["KeyboardInterrupt", "None"]),
    ],
)
def test_an_error_of_the_program_is_not_lost_after_a_failed_step(error, left):
    (outcome,) = launch.run(1, raised_after, arguments=[error])
    assert outcome.result == left, launch.report(outcome)


def without_ready() -> list:
    """What each rank hears where rank 1 comes to the end of a step in which a layer was not marked."""
    import jax
    import jax.numpy as jnp

    import thinwire.jax

    group = thinwire.init()
    params = {"w": jnp.ones((4, 8))}
    exchange = thinwire.jax.exchange(params, "none", group, scanned=["w"])

    def block(total, layer):
        number, weights = layer
        is_marked = number >= group.rank  # all layers on rank 0
        weights = jax.lax.cond(is_marked, exchange.mark, lambda same, _: same, weights, number)
        return total + jnp.sum(weights), None

    def loss(params):
        return jax.lax.scan(block, 0.0, (jnp.arange(4), params["w"]))[0]

    try:
        with thinwire.jax.guard(exchange):
            jax.block_until_ready(jax.jit(lambda tree: exchange(jax.grad(loss)(tree)))(params))
    except thinwire.Error as error:
        return [type(error).__name__, str(error)]
    return []


def test_a_mistake_on_one_rank_is_told_to_the_others(ranks):
    (waiting, heard), (kind, said) = ranks(2, without_ready)
    assert (waiting, kind) == ("PeerError", "InvalidError")
    assert f"rank 1: {said}" in heard
