"""Layers under scan, whose gradients leave during backward, and several devices of one process."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("jax", "optax")

DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


def scanned() -> list[list]:
    """How far parameters are from those of one process, and their bits, with marks under scan and remat."""
    import jax
    import jax.numpy as jnp
    import optax

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    first, second = jax.random.split(jax.random.key(0))
    layers = {"w": 0.2 * jax.random.normal(first, (4, 16, 16)), "b": jnp.zeros((4, 16))}
    layers["empty"] = jnp.zeros((4, 0))
    params = {"layers": layers, "out": 0.1 * jax.random.normal(second, (16, 4))}

    def loss(mark, wrap, params, batch):
        def block(hidden, layer):
            number, weights = layer
            weights = mark(weights, number)
            return jnp.tanh(hidden @ weights["w"] + weights["b"]), None

        xs = jnp.arange(4), params["layers"]
        hidden, _ = jax.lax.scan(wrap(block), batch[0], xs)
        return jnp.mean((hidden @ params["out"] - batch[1]) ** 2)

    def plain(layer, number):
        return layer

    answers = []
    for codec, wrap in (
        ("none", lambda block: block),
        ("none", jax.checkpoint),
        ("int8", jax.checkpoint),
    ):
        optimizer = thinwire.jax.averaged(
            optax.adam(1e-3), params, codec, bucket_bytes=512, scanned=["layers"]
        )
        mark = optimizer.exchange.mark
        one = models.train(
            optax.adam(1e-3), models.batches(), params, lambda *each, w=wrap: loss(plain, w, *each)
        )
        many = models.train(
            optimizer,
            models.batches(group.rank, group.world),
            params,
            lambda *each, m=mark, w=wrap: loss(m, w, *each),
        )
        names = [bucket["name"] for bucket in optimizer.exchange.record()["buckets"]]
        answers.append([models.difference(one, many), models.bits(many), names])
    exchange = thinwire.jax.exchange(params, "none", scanned=["layers"])
    try:
        exchange(params)
    except thinwire.InvalidError as error:
        answers.append(str(error))
    return answers


def test_marked_layers_train_as_one_process(ranks):
    first, second = ranks(2, scanned)
    assert first == second
    *trained, unmarked = first
    assert all(gap < 1e-6 for gap, _, _ in trained[:2])
    assert trained[2][0] < 0.01
    order = [name[-2] for name in trained[0][2] if name.startswith("layers")]
    assert order == sorted(order, reverse=True), "the last layer leaves first"
    assert unmarked.startswith("no layer of layers was marked, expected exchange.mark")


def devices(kind: str) -> list:
    """The same for two devices in each process; and what is refused there."""
    import jax
    import optax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import jax_models as models
    import thinwire.jax

    group = thinwire.init()
    axis = (getattr(AxisType, kind),)
    mesh = jax.make_mesh((2,), ("local",), axis_types=axis, devices=jax.local_devices())
    replicated = NamedSharding(mesh, PartitionSpec())
    params = jax.device_put(models.parameters(), replicated)
    answers = []
    # Parameters that are nowhere in particular follow the batch, also after a broadcast.
    free = params if kind == "Explicit" else thinwire.jax.broadcast(models.parameters())
    for codec, start in (("none", params), ("int8", free)):
        optimizer = thinwire.jax.averaged(
            optax.adam(1e-3), params, codec, mesh=mesh, bucket_bytes=1024
        )
        parts = models.batches(group.rank, group.world)
        parts = (
            jax.device_put(part, NamedSharding(mesh, PartitionSpec("local"))) for part in parts
        )
        many = models.train(optimizer, parts, start)
        one = models.train(optax.adam(1e-3), models.batches())
        steps = optimizer.exchange.record()["step"] + 1
        answers.append([models.difference(one, many), models.bits(many), steps])
    exchange = thinwire.jax.exchange(params, "none")
    specs = {"mesh": mesh, "in_specs": PartitionSpec(), "out_specs": PartitionSpec()}
    inside = jax.shard_map(exchange, **specs, check_vma=False)
    for call in (exchange, jax.jit(exchange), jax.jit(inside)):
        try:
            call(params)
        except thinwire.InvalidError as error:
            answers.append(str(error))
    return answers


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_devices_of_a_process_exchange_once(ranks, kind):
    first, second = ranks(2, devices, arguments=[kind], env=DEVICES)
    assert first == second
    exact, coded, outside, *inside = first
    assert exact[0] < 1e-6 and coded[0] < 0.01
    assert exact[2] == coded[2] == 30, "one exchange in each step"
    assert "is on 2 devices, expected one (hint: pass mesh= to thinwire.jax.exchange)" in outside
    assert len(inside) == 2
    assert all(text.startswith("the exchange is in a program for 2 devices") for text in inside)
