"""Connection of a worker to a job with parameter servers.

All workers of a job must define equal tables, and the tables are known only when the optimizer is created,
so the optimizer joins the job.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from thinwire import arguments
from thinwire._core import InvalidError, ServerClient
from thinwire.arguments import Seconds
from thinwire.deprecated import renamed

SHARDS_PER_SERVER = 8
"""Default number of shards per server. It allows an even division if the number of servers
changes."""
FORMATS = {"none": "f32"}
"""The core's names of formats that differ from those of codecs."""
Gradient = tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Table number, rows (int64) and gradients (float32, row by row); contiguous arrays."""
Rows = tuple[int, np.ndarray[Any, Any]]
"""Table number and rows (int64, contiguous)."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table that has no number yet. `optimizer` and `codec` default to those of the job."""

    name: str
    rows: int
    width: int
    initial: str
    optimizer: str | None = None
    codec: str | None = None


class ParameterServer:
    """Connection of a worker to the servers of a job. Creating a `ServerOptimizer` joins the job.

    As a context manager it leaves the job at the end.

    Args:
        optimizer: rule by which servers update rows, with its learning rate: "sgd:lr=0.1",
            "adagrad:lr=0.1", "lazyadam:lr=0.001", "ftrl:lr=0.1,l1=1"; "momentum", "nesterov", "adam" and
            "adamw" also update rows without a gradient, so they cannot be used for embeddings.
        consistency: "sync": the gradients of all workers in a step are summed and applied as one update;
            "bounded:4": every push is an update, and no worker is more than 4 steps ahead of the slowest;
            "async": every push is an update, and no worker waits.
        servers: number of servers with which the job begins.
        replicas: number of servers that can be lost at once without losing rows; by default 1, or 0 with
            one server.
        shards: number of parts into which the rows are divided; by default 8 per server.
        seed: seed of the initial values.
        codec: how rows and gradients travel: "none" (as f32), "f16" or "int8". Gradients are rounded
            without bias, or with error feedback in "sync" for parameters that are pushed whole; pulled rows
            are rounded to the nearest. Servers compute in f32.
        restore: files with which the job begins, the same as those of its servers (`thinwire server
            --restore PATH`): a snapshot or a folder of snapshots for all tables, or a safetensors file,
            such as a checkpoint of the model, for tables whose initial values are "checkpoint".
        coordinator, token: address of the job's coordinator, host:port or etcd://HOST:PORT/JOB, and the
            job's secret; by default from the launcher, in THINWIRE_COORDINATOR and THINWIRE_TOKEN.
        timeout_s: longest time without an answer, in seconds. In "sync" and "bounded" it must exceed the
            longest step of the slowest worker.
    """

    @renamed(values="codec")
    def __init__(
        self,
        optimizer: str,
        consistency: str = "sync",
        *,
        servers: int = 2,
        replicas: int | None = None,
        shards: int | None = None,
        seed: int = 1,
        codec: str = "none",
        restore: str | os.PathLike[str] | None = None,
        coordinator: str | None = None,
        token: str | None = None,
        timeout_s: Seconds = 60.0,
    ) -> None:
        """Checks the arguments. Nothing is connected yet."""
        timeout_s = arguments.job(coordinator, token, timeout_s)
        for name, value, least in (("servers", servers, 1), ("seed", seed, 0)):
            arguments.whole(f"{name} is", value, least)
        arguments.text("codec", codec)
        for name, given in (("replicas", replicas), ("shards", shards)):
            arguments.integer_or_none(name, given)
        replicas = min(1, servers - 1) if replicas is None else replicas
        if replicas >= servers:
            raise InvalidError(
                f"{replicas} replicas with {servers} servers, expected fewer replicas than servers"
            )
        self.optimizer = optimizer
        self.consistency = consistency
        self._counts = {"servers": servers, "backups": replicas}
        self._counts["shards"] = SHARDS_PER_SERVER * servers if shards is None else shards
        self._seed = seed
        self._codec = codec
        self._place: dict[str, Any] = {
            "coordinator": coordinator,
            "token": token,
            "timeout_s": timeout_s,
        }
        self._restore = restore
        self._client: ServerClient | None = None
        self._has_left = False
        self._tables: tuple[Table, ...] = ()

    @property
    def rank(self) -> int:
        """Index of this worker among the workers, from 0. It changes when workers join or leave."""
        return self._core.rank

    @property
    def world(self) -> int:
        """Number of workers."""
        return self._core.world

    @property
    def pushing(self) -> int:
        """Number of workers that push, this one included: all workers of the epoch except those
        that only read rows. Before the first step of the job, all workers are expected to push."""
        return self._core.pushing

    def join(self, tables: Sequence[Table], facts: list[tuple[str, str]]) -> None:
        """Joins the job with these tables; the number of a table is its index in `tables`. `facts`,
        pairs of name and value, must be equal on all workers.

        # Errors

        InvalidError if the process belongs to no job, or its tables, consistency or facts differ from the
        job's.
        """
        if self._client is not None:
            raise InvalidError(
                "this ParameterServer has joined already, expected one per optimizer"
            )
        definition = json.dumps(self._definition(tables))
        self._client = ServerClient(definition, facts, restore=self._restore, **self._place)
        self._tables = tuple(tables)

    def push(self, gradients: Sequence[Gradient]) -> None:
        """Waits for the previous push, and begins the next one. A push may be empty, because
        servers count pushes as steps.

        # Errors

        InvalidError after `leave`: other workers no longer wait for this one.
        """
        if self._has_left:
            raise InvalidError(
                "this worker has left the job of its servers, expected no further step (hint: step within "
                "`with server:`, and before server.leave())"
            )
        pushed = [
            (table, rows.ctypes.data, rows.size, values.ctypes.data, values.size)
            for table, rows, values in gradients
        ]
        self._core.begin_push(pushed)

    def pull(self, groups: Sequence[Rows]) -> np.ndarray[Any, Any]:
        """Returns the values of rows, group after group, as one flat array. They contain all pushes of
        this worker."""
        count = sum(rows.size * self._tables[table].width for table, rows in groups)
        out = np.empty(count, np.float32)
        pulled = [(table, rows.ctypes.data, rows.size) for table, rows in groups]
        self._core.pull(pulled, out.ctypes.data, out.size)
        return out

    def cache(self, table: int, bytes_max: int, staleness: int) -> None:
        """Caches rows of a table in at most `bytes_max` bytes, for `staleness` steps of this worker."""
        self._core.cache(table, bytes_max, staleness)

    def hits(self, table: int) -> dict[str, int]:
        """Returns the counters of a table's cache; empty if the table is not cached."""
        found: dict[str, int] = json.loads(self._core.hits(table) or "{}")
        return found

    def tell(self, steps: int, step_s: float) -> None:
        """Reports the figures that `thinwire top` shows for this worker after `steps` steps of `step_s`
        seconds each."""
        self._core.tell(steps, step_s)

    def snapshot(self) -> str:
        """Takes a snapshot of all tables that contains all pushes of this worker. Returns the name of
        its folder, which is in the servers' folder (`thinwire server --snapshot-dir FOLDER`). Other
        workers continue.

        # Errors

        InvalidError if the servers have no such folder or the snapshot fails. Training can continue.
        """
        return self._core.snapshot()

    def finish(self) -> None:
        """Waits until all replicas have the last push."""
        self._core.finish_push()

    def leave(self) -> None:
        """Leaves the job after the last push, so that no other worker waits for this one."""
        try:
            self.finish()
        finally:
            self._has_left = True
            self._core.leave()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._client is not None and kind is None:
            self.leave()
        elif self._client is not None:
            self._has_left = True
            self._client.leave()

    @property
    def _core(self) -> ServerClient:
        if self._client is None:
            raise InvalidError(
                "this worker has not joined the job of its servers (hint: make a "
                "ServerOptimizer first)"
            )
        return self._client

    def _definition(self, tables: Sequence[Table]) -> dict[str, Any]:
        """Returns the settings on which all processes of the job must agree, in the core's format."""
        described = [
            {
                "name": table.name,
                "rows": table.rows,
                "width": table.width,
                "optimizer": table.optimizer or self.optimizer,
                "initial": table.initial,
                "seed": self._seed,
                "stream": number,
                "values": FORMATS.get(table.codec or self._codec, table.codec or self._codec),
            }
            for number, table in enumerate(tables)
        ]
        return {"tables": described, "consistency": self.consistency, **self._counts}
