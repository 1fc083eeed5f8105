"""Pauses of a rank that polls for something that another rank does."""

from __future__ import annotations

import time

LOOK_S = 0.01, 0.2
"""The first and the longest pause between two polls, in seconds."""


class Pauses:
    """Pauses between polls, each twice as long as the one before, until the deadline."""

    def __init__(self, deadline: float) -> None:
        """Takes the deadline, in seconds of `time.monotonic()`."""
        self.deadline, self.next_s = deadline, LOOK_S[0]

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def make(self) -> bool:
        """Makes the next pause and returns True; returns False at once after the deadline."""
        if self.left_s <= 0:
            return False
        time.sleep(min(self.next_s, self.left_s))
        self.next_s = min(2 * self.next_s, LOOK_S[1])
        return True
