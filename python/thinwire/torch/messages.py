"""Messages between two ranks of a process group, as c10d calls them; they run concurrently with the
collectives."""

from __future__ import annotations

import functools
from typing import Any

from thinwire.torch import exchange
from thinwire.torch.arguments import one
from thinwire.torch.calls import Calls
from thinwire.torch.staging import Staging
from thinwire.torch.work import Work


class Messages(Calls):
    """The operations between two ranks of a process group."""

    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank of this group."""
        stage = Staging()
        host = stage.read(one(tensors, "send"))
        message = functools.partial(self.core.send, host.data_ptr(), exchange.size(host), to, tag)
        if to == self.rank():
            message = functools.partial(self.mailbox.send, host, tag)
        return self.post("send", message, stage, tensors, to)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        """Receives from a rank of this group into a tensor."""
        stage = Staging()
        host = stage.write(one(tensors, "recv"))
        address = host.data_ptr()
        message = functools.partial(self.core.recv, address, exchange.size(host), source, tag)
        if source == self.rank():
            message = functools.partial(self.mailbox.recv, host, tag)
        return self.post("recv", message, stage, tensors, source)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receives from the only other rank. Refuses groups that do not have exactly two ranks.

        # Errors

        NotImplementedError in other groups, because a receive matches messages of one given rank.
        """
        if self.size() == 2:
            return self.recv(tensors, 1 - self.rank(), tag)
        raise NotImplementedError(
            "thinwire receives from a named rank, not from any (hint: give src, or let every rank "
            "announce with all_gather what it sends)"
        )

    recvAnysource = recv_anysource
