"""Pauses of a rank that looks again and again for what another one does."""

from __future__ import annotations

import time

LOOK_S = 0.01, 0.2
"""How long a rank waits between two looks, at first and at most, in seconds."""


class Pauses:
    """Pauses between looks, each longer than the one before, until the deadline."""

    def __init__(self, deadline: float) -> None:
        """None yet."""
        self.deadline, self.next_s = deadline, LOOK_S[0]

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def make(self) -> bool:
        """Makes the next pause; False, at once, where the time is over."""
        if self.left_s <= 0:
            return False
        time.sleep(min(self.next_s, self.left_s))
        self.next_s = min(2 * self.next_s, LOOK_S[1])
        return True
