"""What TensorFlow's tape, exchange and collectives refuse, and how a step fails: one line on every rank."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

import launch

pytestmark = pytest.mark.needs("tensorflow")


def said(call, *given: Any) -> str:
    """The error of a call, which must be InvalidError of one line."""
    import thinwire

    with pytest.raises(thinwire.InvalidError) as caught:
        call(*given)
    text = str(caught.value)
    assert "\n" not in text, text
    return text


def refusals() -> dict[str, str]:
    """What is said of bad input, on ranks that all give the same, or of which rank 1 gives another."""
    import tensorflow as tf

    import thinwire
    import thinwire.tensorflow as tw

    group = thinwire.init()
    answers: dict[str, str] = {}

    def variable(*shape: int, dtype: Any = tf.float32, name: str = "weight") -> Any:
        return tf.Variable(tf.zeros(shape, dtype), name=name)

    def averages(variables: Any, gradients: Any, **options: Any) -> Any:
        return tw.exchange(variables, "none", **options)(gradients)

    def in_graph(call: Any, **options: Any) -> Any:
        return tf.function(call, **options)()

    weight, bias = variable(3, 2), variable(2, name="bias")
    one, two = tf.ones((3, 2)), tf.ones(2)
    for dtype in (tf.float64, tf.int32, tf.complex64):
        each = variable(3, dtype=dtype)
        answers[dtype.name] = said(averages, [each], [tf.ones(3, dtype)])
    answers["count"] = said(averages, [weight, bias], [one])
    answers["structure"] = said(averages, {"weight": weight}, [one])
    answers["shape"] = said(averages, [weight], [tf.ones((2, 3))])
    answers["dtype"] = said(averages, [weight], [tf.ones((3, 2), tf.float16)])
    answers["graph"] = said(in_graph, lambda: averages([weight], [two]))
    answers["nothing"] = said(averages, [weight], [None])
    answers["variables"] = said(tw.exchange, [3.0])
    answers["codec"] = said(tw.exchange, [weight], "zip")
    answers["option"] = said(lambda: tw.exchange([weight], seed="one"))
    # Ranks that differ.
    other = variable(3 + group.rank, 2)
    answers["other shape"] = said(averages, [other], [tf.ones_like(other)])
    other = variable(3, dtype=(tf.float32, tf.float16)[group.rank])
    answers["other dtype"] = said(averages, [other], [tf.ones_like(other)])
    other = variable(3, dtype=(tf.float32, tf.float64)[group.rank])
    answers["one dtype"] = said(averages, [other], [tf.ones_like(other)])
    other = tf.Variable(tf.fill((3,), float(group.rank)), name="weight")
    answers["other values"] = said(averages, [other], [tf.ones(3)])
    answers["values in graph"] = said(in_graph, lambda: averages([other], [tf.ones(3)]))
    some = [weight, bias][: 2 - group.rank]
    answers["other count"] = said(averages, some, [one, two][: 2 - group.rank])
    # Later steps.
    average = tw.exchange([weight, bias], "none")
    average([one, None])
    answers["later kind"] = said(average, [one, two])
    average([one, None])
    # Functions that XLA compiles, and one inside of another.
    compiled = tw.exchange([weight], "none")
    answers["xla"] = said(lambda: in_graph(lambda: compiled([one]), jit_compile=True))
    inner = tf.function(lambda: compiled([one]))
    answers["inner xla"] = said(lambda: in_graph(lambda: inner(), jit_compile=True))
    answers["xla collective"] = said(lambda: in_graph(lambda: tw.all_reduce(one), jit_compile=True))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight)
    tape_of_tensors = tw.DistributedGradientTape(tf.GradientTape(persistent=True), "none")
    with tape_of_tensors:
        tape_of_tensors.watch(one)
        loss = tf.reduce_sum(one)
    answers["tensors"] = said(tape_of_tensors.gradient, loss, [one])
    answers["twice"] = said(tw.DistributedGradientTape, tw.DistributedGradientTape(tape))
    answers["no tape"] = said(tw.DistributedGradientTape, loss)
    answers["text"] = said(tw.all_reduce, tf.constant("text"))
    answers["slices"] = said(tw.all_gather, tf.IndexedSlices(one, tf.range(3)))
    answers["root"] = said(lambda: tw.broadcast(one, root=2))
    answers["start"] = said(tw.broadcast_variables, [variable(3 + group.rank)])
    answers["start in graph"] = said(in_graph, lambda: tw.broadcast_variables([weight]))
    np.testing.assert_array_equal(average([one, None])[0], one)
    answers |= derivatives(tf, tw)
    np.testing.assert_array_equal(average([one, None])[0], one)
    average.gradients.group.process += 1  # as after a fork
    answers["fork"] = said(average, [one, None])
    group.process -= 1
    group.close()
    answers["closed"] = said(average, [one, None])
    return answers


def derivatives(tf, tw) -> dict[str, str]:
    """What is said to tapes that take gradients through exchanges, and nothing to those that do not."""
    weight = tf.Variable([1.0, 2.0])
    average = tw.exchange([weight], "none")

    def squared() -> Any:
        return tf.reduce_sum(weight * weight)

    def through(values: Any) -> Any:
        """The gradient of a function of the averages of another gradient."""
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = squared()
            total = tf.reduce_sum(values(inner, loss))
        return outer.gradient(total, weight)

    def by_tape(inner: Any, loss: Any) -> Any:
        return tw.DistributedGradientTape(inner, "none").gradient(loss, [weight])[0]

    def by_exchange(inner: Any, loss: Any) -> Any:
        return average(inner.gradient(loss, [weight]))[0]

    def sparse(inner: Any, loss: Any) -> Any:
        rows = tf.IndexedSlices(inner.gradient(loss, weight), tf.range(2), tf.constant([2]))
        return by_rows([rows])[0].values

    def forward() -> Any:
        with tf.autodiff.ForwardAccumulator(weight, tf.ones(2)):
            return tw.all_reduce(2.0 * weight)

    by_rows = tw.exchange([weight], "none")
    kinds = {"tape": by_tape, "exchange": by_exchange, "rows": sparse}
    for call in (tw.all_reduce, tw.all_gather, tw.broadcast):
        kinds[call.__name__] = lambda inner, loss, call=call: call(loss * weight)
    found = {"forward": said(forward)}
    for name, values in kinds.items():
        step = tf.function(functools.partial(through, values))
        found[name] = said(through, values)
        assert said(step) == found[name]

    @tf.function
    def shown() -> Any:
        return squared(), tf.stop_gradient(tw.all_reduce(squared(), average=True))

    # Outside of a tape's path, and inside of one that is persistent and still records.
    with tf.GradientTape(persistent=True) as tape:
        loss, everywhere = shown()
        (gradient,) = average([tape.gradient(loss, weight)])
    assert float(loss) == float(everywhere)
    np.testing.assert_array_equal(tape.gradient(loss, weight), gradient)
    found["persistent"] = said(tape.gradient, gradient, weight)
    return found


def test_bad_input_is_refused_in_one_line(ranks):
    first, second = ranks(2, refusals)
    assert first.keys() == second.keys()
    local = {"one dtype", "closed", "fork"}
    assert all(first[name] == second[name] for name in first.keys() - local)
    expected = {
        "float64": "the gradient of weight is float64, expected float32, float16, bfloat16",
        "int32": "is int32",
        "complex64": "is complex64",
        "count": "1 gradients for 2 variables",
        "shape": "the gradient of weight is float32 [2, 3], but its variable is float32 [3, 2]",
        "dtype": "is float16 [3, 2], but its variable is float32",
        "graph": "is float32 [2], but its variable is float32 [3, 2]",
        "nothing": "none of 1 variables has a gradient",
        "variables": "variables contain 3.0",
        "codec": "unknown codec 'zip'",
        "option": 'seed is "one", expected a whole number',
        "other shape": "rank 1 has weight float32 [4, 2], rank 0 has weight float32 [3, 2]",
        "other dtype": "rank 1 has weight float16 [3], rank 0 has weight float32 [3]",
        "one dtype": "the gradient of weight is float64",
        "other values": "rank 1 has weight of checksum",
        "values in graph": "rank 1 has weight of checksum",
        "later kind": "the gradient of bias is dense, in the first step it was none on all ranks",
        "xla": "jit_compile=True, expected False",
        "inner xla": "jit_compile=True",
        "xla collective": "jit_compile=True",
        "tensors": "a source of the tape is EagerTensor, expected a variable (hint: exchange",
        "twice": "wrap it once",
        "no tape": "expected a tf.GradientTape",
        "text": "a tensor of string, expected numbers",
        "slices": "IndexedSlices, expected a tensor",
        "root": "root 2",
        "start": "rank 1 has variable 0 of float32 [4], rank 0 has variable 0 of float32 [3]",
        "start in graph": "broadcast_variables was called in a tf.function",
        "tape": "derivative of an exchange of gradients, expected none (hint: take the gradients first",
        "exchange": "derivative of an exchange of gradients",
        "rows": "derivative of an exchange of gradients",
        "persistent": "derivative of an exchange of gradients",
        "all_reduce": "derivative of all_reduce",
        "all_gather": "derivative of all_gather",
        "broadcast": "derivative of broadcast",
        "forward": "derivative of all_reduce",
        "fork": "is of the parent process, expected an open one",
        "closed": "is closed, expected an open one",
    }
    for name, words in expected.items():
        assert words in first[name], (name, first[name])
    assert second["one dtype"].startswith("the gradient of weight is float64")
    assert first["one dtype"].startswith("rank 1 says: the gradient of weight is float64")


def failing(event: str, graph: bool) -> str:
    """What this rank hears of a step in which something happens on rank 1."""
    import tensorflow as tf

    import thinwire
    import thinwire.tensorflow as tw

    group = thinwire.init(heartbeat_timeout_s=2.0)
    processes = group.all_gather(np.array([os.getpid()]))
    weight = tf.Variable(tf.ones(5))
    average = tw.exchange([weight], "none")

    def step() -> None:
        weight.assign_sub(0.1 * average([2.0 * weight])[0])

    run = tf.function(step) if graph else step
    try:
        with tw.guard(average if graph else None):
            for number in range(5):
                if (number, group.rank) == (3, 1):
                    happens(event)
                    return "left"
                run()
    except (thinwire.PeerError, ValueError) as error:
        if event == "stop":
            os.kill(processes[1], signal.SIGKILL)
        return f"{type(error).__name__}: {error}"
    return "nothing"


def happens(event: str) -> None:
    """What the test asks for."""
    if event == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif event == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif event == "raise":
        raise ValueError("no label 11")


@pytest.mark.parametrize(
    ("event", "words", "graph"),
    [
        ("kill", "lost rank 1", True),
        ("kill", "lost rank 1", False),
        ("stop", "lost rank 1: silent for", True),
        ("raise", "rank 1 raised ValueError: no label 11", True),
        ("raise", "rank 1 raised ValueError: no label 11", False),
        ("leave", "it left", True),
        ("leave", "it left", False),
    ],
)
def test_an_end_of_one_rank_is_heard_in_one_line(event, words, graph):
    waiting, ended = launch.run(2, failing, arguments=[event, graph])
    assert waiting.result.startswith("PeerError: ") and words in waiting.result, waiting
    assert "rank 1" in waiting.result and "\n" not in waiting.result
    if event == "raise":
        assert ended.result == "ValueError: no label 11"


def interrupted(graph: bool) -> str:
    """What ends this rank's step, where rank 0 waits for rank 1, which interrupts it."""
    import tensorflow as tf

    import thinwire
    import thinwire.tensorflow as tw
    from thinwire import gradients, interrupts

    group = thinwire.init()
    processes = group.all_gather(np.array([os.getpid()]))
    average = tw.exchange([tf.Variable(tf.ones(5))], "none")
    run = tf.function(average) if graph else average
    run([tf.ones(5)])
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "LOOK_S", 0.0)  # this wait looks for it
        run([tf.ones(5)])
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    try:
        with tw.guard(average):
            assert not interrupts.pressed(), "it was raised before"
            run([tf.ones(5)])
            group.barrier()
            if group.rank == 0:
                run([tf.ones(5)])
            os.kill(int(processes[0]), signal.SIGINT)
            group.barrier()
    except (KeyboardInterrupt, thinwire.PeerError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_ctrl_c_ends_a_wait_and_the_peers_hear_of_it(ranks, graph):
    pressed, waiting = ranks(2, interrupted, arguments=[graph])
    assert pressed == "KeyboardInterrupt: "
    assert waiting.startswith("PeerError: ") and "rank 0 raised KeyboardInterrupt" in waiting
