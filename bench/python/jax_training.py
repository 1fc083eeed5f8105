"""One rank of the training benchmark of JAX: a GPT over characters, under Thinwire and its peers.

Started once per rank with torchrun's variables. Every method trains the model from the same parameters on
the same batches, in blocks of `--every` steps that take turns, so that all see the same machine; its clock
runs in its own blocks alone, and begins after two steps of its own, which compile. Rank 0 prints a line
of JSON per method: seconds and bytes per step, and the curve of the validation loss, which has the same
samples for all. Methods are `compute`, which exchanges nothing, `gloo`, JAX's own mean over
`jax.distributed`, `mpi4jax`, and codecs of Thinwire.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import thinwire.jax

sys.path.append(str(Path(__file__).parents[2] / "examples" / "python"))
from jax_gpt import GPT

WARMUP, SAMPLES = 2, 32


def main() -> None:
    options = arguments()
    rank, world = place()
    if "gloo" in options.methods.split(","):
        join_gloo(rank, world)
    group = thinwire.init(rank, world, meeting(7))
    text = np.frombuffer(options.data.read_bytes(), np.uint8)
    vocabulary, text = np.unique(text, return_inverse=True)
    held = len(text) * 9 // 10
    model = GPT(len(vocabulary), options.width, options.blocks)
    device = jax.local_devices()[0]
    with jax.default_device(device):
        params = model.init(jax.random.key(options.seed), jnp.zeros((1, options.context), int))
        task = Task(model, params, text[:held], text[held:], group, options)
        trainings = [Training(method, task) for method in options.methods.split(",")]
        for _ in range(-(-options.steps // options.every)):
            for training in trainings:
                training.advance()
    for training in trainings:
        if group.rank == 0:
            print(json.dumps(training.record()), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", default="compute,gloo,none,int8,auto")
    parser.add_argument("--data", type=Path, required=True, help="a text file")
    numbers = {"steps": 200, "every": 20, "batch": 8, "context": 64, "width": 320, "blocks": 8}
    for name, value in {**numbers, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=1e-3)
    return parser.parse_args()


def place() -> tuple[int, int]:
    """Rank and world, also under mpirun, whose processes all have the variables of the first."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ["RANK"])
    return int(rank), int(os.environ["WORLD_SIZE"])


def meeting(port: int) -> str:
    """An address of rank 0."""
    return f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + port}"


def join_gloo(rank: int, world: int) -> None:
    """Lets JAX reach the other ranks' devices, over the interface of the measurement."""
    from jax._src.lib import _jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    interface = os.environ.get("NETWORK_INTERFACE")
    # JAX would take the address of the host's name, which other namespaces do not reach.
    made = _jax.make_gloo_tcp_collectives
    _jax.make_gloo_tcp_collectives = functools.partial(made, interface=interface)
    jax.distributed.initialize(meeting(11), world, rank, local_device_ids=[0])


class Task:
    """What all methods train, and on what."""

    def __init__(self, model, params, text, held, group, options) -> None:
        self.model, self.params, self.text, self.group = model, params, text, group
        self.options = options
        self.optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(options.rate))
        draw = np.random.default_rng(7)
        self.validation = rows(draw, held, SAMPLES, options.context)
        self.validate = jax.jit(self.loss)

    def loss(self, params, rows):
        """The mean over characters."""
        scores = self.model.apply(params, rows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(scores, rows[:, 1:]).mean()


def rows(draw: np.random.Generator, text, count: int, context: int):
    """Windows of a text."""
    starts = draw.integers(len(text) - context - 1, size=count)
    return np.stack([text[start : start + context + 1] for start in starts]).astype(np.int32)


class Training:
    """One method's model, its clock and its bytes."""

    def __init__(self, method: str, task: Task) -> None:
        self.method, self.task = method, task
        self.draw = np.random.default_rng([task.options.seed, task.group.rank])
        peers = {"compute": self._alone, "gloo": self._by_gloo, "mpi4jax": self._by_mpi}
        self.params, self.state, self.step = peers.get(method, self._by_thinwire)()
        self.seconds, self.bytes, self.steps = 0.0, 0, 0
        self.curve: list[list[float]] = []
        # Compiles, and lets `auto` measure the network.
        for _ in range(WARMUP):
            self._one()

    def advance(self) -> None:
        """Trains a block, and validates."""
        self.task.group.barrier()
        begin, sent = time.perf_counter(), sent_bytes()
        for _ in range(self.task.options.every):
            self._one()
        jax.block_until_ready(self.params)
        self.task.group.barrier()
        self.seconds += time.perf_counter() - begin
        self.bytes += sent_bytes() - sent
        self.steps += self.task.options.every
        loss = float(self.task.validate(self._local(self.params), self.task.validation))
        self.curve.append([round(self.seconds, 3), self.steps, round(loss, 4)])

    def record(self) -> dict:
        """What is printed."""
        return {
            "method": self.method,
            "network": os.environ.get("NETWORK", "loopback"),
            "world": self.task.group.world,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(self.task.params)),
            "step_ms": 1e3 * self.seconds / self.steps,
            "sent_mb": self.bytes / self.steps / 1e6,
            "loss": self.curve[-1][2],
            "curve": self.curve,
        }

    def _one(self) -> None:
        options = self.task.options
        batch = rows(self.draw, self.task.text, options.batch, options.context)
        self.params, self.state = self.step(self.params, self.state, batch)

    def _alone(self):
        return self._trained_by(self.task.optimizer)

    def _by_mpi(self):
        import mpi4jax
        from mpi4py import MPI

        world = self.task.group.world

        def update(gradients, *rest):
            sums = jax.tree.map(lambda leaf: mpi4jax.allreduce(leaf, op=MPI.SUM), gradients)
            means = jax.tree.map(lambda leaf: leaf / world, sums)
            return self.task.optimizer.update(means, *rest)

        return self._trained_by(optax.GradientTransformation(self.task.optimizer.init, update))

    def _by_thinwire(self):
        averaged = thinwire.jax.averaged(
            self.task.optimizer, self.task.params, self.method, self.task.group
        )
        return self._trained_by(averaged)

    def _trained_by(self, optimizer):
        @jax.jit
        def step(params, state, batch):
            gradients = jax.grad(self.task.loss)(params, batch)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        return self.task.params, optimizer.init(self.task.params), step

    def _by_gloo(self):
        """The mean over a mesh of all ranks' devices."""
        mesh = Mesh(np.array(jax.devices()), ("ranks",))
        whole, part = PartitionSpec(), PartitionSpec("ranks")

        def inner(params, state, batch):
            gradients = jax.lax.pmean(jax.grad(self.task.loss)(params, batch), "ranks")
            updates, state = self.task.optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        specs = {"in_specs": (whole, whole, part), "out_specs": whole}
        compiled = jax.jit(jax.shard_map(inner, mesh=mesh, **specs, check_vma=False))

        def everywhere(tree, spec):
            sharding = NamedSharding(mesh, spec)
            return jax.tree.map(
                lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)),
                tree,
            )

        def step(params, state, batch):
            return compiled(params, state, everywhere(batch, part))

        state = self.task.optimizer.init(self.task.params)
        return everywhere(self.task.params, whole), everywhere(state, whole), step

    @staticmethod
    def _local(params):
        """This rank's copies of parameters."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), params)


def sent_bytes() -> int:
    """What this rank's interface has sent so far."""
    interface = os.environ.get("NETWORK_INTERFACE", "lo")
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    main()
