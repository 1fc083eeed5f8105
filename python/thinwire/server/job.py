"""The job of a worker with parameter servers: its tables, and the servers that have them.

Tables become known when the optimizer is made. Only then can the job be joined, because all its workers
must define equal tables.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from thinwire._core import InvalidError, ServerClient

SHARDS_PER_SERVER = 8
"""So that they can be dealt evenly over other numbers of servers."""
Gradient = tuple[int, np.ndarray, np.ndarray]
"""Number of a table, rows (int64), and their gradients (float32), row by row; contiguous."""
Rows = tuple[int, np.ndarray]
"""Number of a table and rows (int64); contiguous."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table before it has a number; without an optimizer or a format of values it has that of the job."""

    name: str
    rows: int
    width: int
    initial: str
    optimizer: str | None = None
    values: str | None = None


class ParameterServer:
    """The servers of a job, as this worker uses them. Making a `ServerOptimizer` joins the job.

    As a context it ends with `leave`.

    Args:
        optimizer: rule by which servers update rows, with its learning rate: "sgd:lr=0.1",
            "adagrad:lr=0.1", "lazyadam:lr=0.001", "ftrl:lr=0.1,l1=1"; "momentum", "nesterov", "adam" and
            "adamw" move all rows in every step, which an embedding does not push.
        consistency: "sync": the sum over all workers of a step is one update; "bounded:4": every push is an
            update, and no worker is more than 4 steps ahead of the slowest; "async": nobody waits.
        servers: number of servers with which the job begins.
        backups: servers that can be lost at once without losing rows; by default 1, or 0 with one server.
        shards: number of parts in which rows are dealt over servers; by default 8 for each server.
        seed: of the first values.
        values: format in which rows and gradients travel: "f32" as they are, "f16" or "int8" rounded.
            Gradients are right on average, or, in "sync" and for parameters that are pushed whole, made up
            for by the next steps; pulled rows are rounded to the nearest. Servers compute in f32.
        restore: files with which the job begins, the same as those of its servers (`thinwire server
            --restore PATH`): a snapshot, or a folder of snapshots, for all tables; or a safetensors file,
            such as a checkpoint of the model, for the tables whose first values are "checkpoint".
        coordinator, token: where the job's coordinator is, as host:port or etcd://HOST:PORT/JOB, and the
            job's secret; by default as the launcher says in THINWIRE_COORDINATOR and THINWIRE_TOKEN.
        timeout_s: longest time without an answer, in seconds. In "sync" and "bounded" it exceeds the
            longest step of the slowest worker.
    """

    def __init__(
        self,
        optimizer: str,
        consistency: str = "sync",
        *,
        servers: int = 2,
        backups: int | None = None,
        shards: int | None = None,
        seed: int = 0,
        values: str = "f32",
        restore: str | os.PathLike[str] | None = None,
        coordinator: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Meets nobody yet."""
        backups = min(1, servers - 1) if backups is None else backups
        if backups >= servers:
            raise InvalidError(f"{backups} backups with {servers} servers, expected fewer")
        self.optimizer = optimizer
        self.consistency = consistency
        self._counts = {"servers": servers, "backups": backups}
        self._counts["shards"] = SHARDS_PER_SERVER * servers if shards is None else shards
        self._seed = seed
        self._values = values
        self._place = {"coordinator": coordinator, "token": token, "timeout_s": timeout_s}
        self._restore = restore
        self._client: ServerClient | None = None
        self._tables: tuple[Table, ...] = ()

    @property
    def rank(self) -> int:
        """This worker's index among the workers, from 0. It changes when workers come and go."""
        return self._core.rank

    @property
    def world(self) -> int:
        """Number of workers."""
        return self._core.world

    def join(self, tables: Sequence[Table], facts: list[tuple[str, str]]) -> None:
        """Joins the job with these tables, whose numbers are their places. `facts`, pairs of name and
        value, must be equal on all workers.

        # Errors

        InvalidError if the process belongs to no job, or its tables, consistency or facts are not the
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
        """Begins a push, once the one before will survive. It may be empty: servers count steps."""
        pushed = [
            (table, rows.ctypes.data, rows.size, values.ctypes.data, values.size)
            for table, rows, values in gradients
        ]
        self._core.begin_push(pushed)

    def pull(self, groups: Sequence[Rows]) -> np.ndarray:
        """Reads rows, group after group, into one flat array. All pushes of this worker are in them."""
        count = sum(rows.size * self._tables[table].width for table, rows in groups)
        out = np.empty(count, np.float32)
        pulled = [(table, rows.ctypes.data, rows.size) for table, rows in groups]
        self._core.pull(pulled, out.ctypes.data, out.size)
        return out

    def cache(self, table: int, bytes_max: int, staleness: int) -> None:
        """Keeps rows of a table in at most so many bytes, for at most so many steps of this worker."""
        self._core.cache(table, bytes_max, staleness)

    def hits(self, table: int) -> dict[str, int]:
        """Returns the counts of a table's cache; nothing without one."""
        return json.loads(self._core.hits(table) or "{}")

    def snapshot(self) -> str:
        """Takes a snapshot of all tables, with all pushes of this worker, and returns the name of its
        folder, which is in that of the servers (`thinwire server --snapshot-dir FOLDER`). Others go on.

        # Errors

        InvalidError if the servers have no folder, or the snapshot fails; training can go on.
        """
        return self._core.snapshot()

    def finish(self) -> None:
        """Waits until the last push will survive."""
        self._core.finish_push()

    def leave(self) -> None:
        """Leaves the job after the last push, so that no other worker waits for this one."""
        try:
            self.finish()
        finally:
            self._core.leave()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._client is not None and kind is None:
            self.leave()
        elif self._client is not None:
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
        """Returns what all processes of the job agree on, as the core reads it."""
        described = [
            {
                "name": table.name,
                "rows": table.rows,
                "width": table.width,
                "optimizer": table.optimizer or self.optimizer,
                "initial": table.initial,
                "seed": self._seed,
                "stream": number,
                "values": table.values or self._values,
            }
            for number, table in enumerate(tables)
        ]
        return {"tables": described, "consistency": self.consistency, **self._counts}
