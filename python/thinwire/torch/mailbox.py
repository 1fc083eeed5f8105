"""Messages of a rank to itself, matched by their tags in the order of the calls; they use no connection."""

from __future__ import annotations

import collections
import threading

import torch

from thinwire._core import InvalidError
from thinwire.torch.exchange import Done


class Mailbox:
    """The messages that a rank has sent to itself but not yet received, and the receives that still
    wait for a message."""

    def __init__(self) -> None:
        """Creates an empty mailbox."""
        self.lock = threading.Lock()
        self.sent: dict[int, collections.deque[torch.Tensor]] = collections.defaultdict(
            collections.deque
        )
        self.wanted: dict[int, collections.deque[tuple[torch.Tensor, Done]]] = (
            collections.defaultdict(collections.deque)
        )

    def send(self, host: torch.Tensor, tag: int, done: Done) -> None:
        """Keeps a copy of the message until it is received. The send completes at once."""
        with self.lock:
            self.sent[tag].append(host.clone())
        done(None)
        self.match(tag)

    def recv(self, host: torch.Tensor, tag: int, done: Done) -> None:
        """Waits for a message of this tag."""
        with self.lock:
            self.wanted[tag].append((host, done))
        self.match(tag)

    def match(self, tag: int) -> None:
        """Delivers the oldest message to the receiver that has waited longest."""
        with self.lock:
            if not (self.sent[tag] and self.wanted[tag]):
                return
            message, (host, done) = self.sent[tag].popleft(), self.wanted[tag].popleft()
        if (message.dtype, message.numel()) != (host.dtype, host.numel()):
            sent, wanted = (f"{one.numel()} of {one.dtype}" for one in (message, host))
            return done(
                InvalidError(f"a message of this rank to itself has {sent}, expected {wanted}")
            )
        host.view(-1).copy_(message.view(-1))
        done(None)
