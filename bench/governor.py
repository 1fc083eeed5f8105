"""Keeps a core at one speed, whatever its neighbours do: run at real-time priority, pinned to it.

    governor.py measure SECONDS    seconds of a piece of work on this core at its best
    governor.py keep SECONDS       from here on the core is as fast as if that work took so long

On a shared machine a core may be twice as fast at one second as at the next, because another's work
has the other half of a physical core. The governor times a piece of work every few milliseconds, and
spins for as long as the core gave others more than at the speed that it keeps. It wakes often: the
kernel divides a core among equals when something wakes on it. Standard library only.
"""

import sys
import time

PERIOD_S = 250e-6
# Of these wakings one times the work.
TIMED = 16
# How much of the speed is what was timed last.
NEW = 0.25
# What others got less is made up for no longer than this.
BEHIND_S = 2e-3


def work_s() -> float:
    """Seconds of a piece of work that finds the caches as it left them."""
    least = 1.0
    for _ in range(3):
        begun = time.perf_counter()
        total = 0
        for number in range(200):
            total += number * number
        least = min(least, time.perf_counter() - begun)
    return least


def measure(seconds: float) -> float:
    """The least seconds of the work within so long."""
    end, least = time.perf_counter() + seconds, work_s()
    while time.perf_counter() < end:
        time.sleep(PERIOD_S)
        least = min(least, work_s())
    return least


def keep(reference_s: float) -> None:
    """Never returns."""
    now_s = work_s()
    ahead_s, wakings, left = 0.0, 0, time.perf_counter()
    while True:
        time.sleep(PERIOD_S)
        begun = time.perf_counter()
        given_s = begun - left
        # What others got, in seconds at the speed that is kept.
        ahead_s += given_s * (reference_s / now_s - 1.0)
        wakings += 1
        if wakings % TIMED == 0:
            now_s += NEW * (min(work_s(), 4.0 * reference_s) - now_s)
        while time.perf_counter() - begun < ahead_s:
            pass
        left = time.perf_counter()
        ahead_s = max(ahead_s - (left - begun), -BEHIND_S)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", seconds]:
            print(measure(float(seconds)))
        case ["keep", reference_s]:
            keep(float(reference_s))
        case _:
            sys.exit(__doc__)
