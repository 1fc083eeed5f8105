"""Processes that share a core run by turns: each has the same part of it at all times, and what it
does not use while it waits is lost, as on a device of its own. The scheduler alone would give it to
the others; quotas would save it up, and are kept to no finer than the kernel's ticks.

    turns.py MILLISECONDS CGROUP[,CGROUP ...] ...     the groups of each core; until it is killed
"""

import itertools
import os
import signal
import sys
import time

LOOK_SECONDS = 0.02  # between looks at who is in the groups


def members(group):
    with open(f"{group}/cgroup.procs") as processes:
        return [int(process) for process in processes]


def send(processes, what):
    for process in processes:
        try:
            os.kill(process, what)
        except ProcessLookupError:
            pass


def turn(number, cores, known):
    for groups in cores:
        now = number % len(groups)
        for place, group in enumerate(groups):
            if place != now:
                send(known[group], signal.SIGSTOP)
        send(known[groups[now]], signal.SIGCONT)


def main(seconds, cores):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    known = {}
    begin = looked = time.monotonic()
    for number in itertools.count():
        if not known or begin > looked + LOOK_SECONDS:
            known = {group: members(group) for groups in cores for group in groups}
            looked = begin
        turn(number, cores, known)
        begin = max(begin + seconds, time.monotonic())
        time.sleep(begin - min(begin, time.monotonic()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cores = [core.split(",") for core in sys.argv[2:]]
    try:
        main(float(sys.argv[1]) / 1e3, cores)
    finally:
        for group in itertools.chain(*cores):
            send(members(group), signal.SIGCONT)
