"""Servers for tests: a coordinator and servers in this process, which workers in others join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TOKEN = "0123456789abcdef"


class Job:
    """A coordinator and servers in this process; `options` are those of each server."""

    def __init__(self, folder: Path, workers: int = 1, servers: int = 2, **options: Any) -> None:
        from thinwire._core import Coordinator, Server

        folder.mkdir(exist_ok=True)
        state = folder / "state"
        self.coordinator = Coordinator("127.0.0.1:0", TOKEN, workers, state=state, servers=True)
        self.address = self.coordinator.address
        self.servers = [Server(self.address, TOKEN, **options) for _ in range(servers)]

    @property
    def environment(self) -> dict[str, str]:
        """That of a new worker."""
        place = {"THINWIRE_COORDINATOR": self.address, "THINWIRE_TOKEN": TOKEN}
        return {**place, "THINWIRE_MEMBER": "new"}


def client(address: str, optimizer: str = "sgd:lr=1", **options: Any) -> Any:
    """The servers of the job at an address, as a worker uses them."""
    from thinwire.server.job import ParameterServer

    place = {"coordinator": address, "token": TOKEN, "timeout_s": 300.0}
    return ParameterServer(optimizer, **{**place, **options})
