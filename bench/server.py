"""From JSON lines of `bench/run.sh server` on stdin to a table.

A cell is the median over rounds of each run's median. `bound` is the time of the busiest link's bytes in
its busier direction, at its whole rate and with both directions at once. Standard library only.
"""

import collections
import json
import statistics
import sys

RATES = {"1gbit": 125e6, "100mbit": 12.5e6, "10gbit": 1250e6}
ROW_BYTES = {"f32": 4.0, "f16": 2.0, "int8": 1.0}


def main() -> None:
    seconds = collections.defaultdict(list)
    for line in sys.stdin:
        it = json.loads(line)
        key = tuple(
            it[name]
            for name in ("network", "bytes", "peer", "world", "servers", "backups", "format")
        )
        seconds[key].append((it["seconds_median"], it["seconds_min"], it["seconds_max"]))
    print(
        "| network | MB | what | workers | servers | backups | format | ms | least to most | bound ms "
        "| x bound |"
    )
    print("|---|--:|---|--:|--:|--:|---|--:|--:|--:|--:|")
    for key, found in sorted(seconds.items()):
        network, size, peer, world, servers, backups, form = key
        median = statistics.median(each[0] for each in found)
        spread = f"{1e3 * min(e[1] for e in found):.1f} to {1e3 * max(e[2] for e in found):.1f}"
        bound = bound_of(key)
        shown = [f"{1e3 * bound:.0f}", f"{median / bound:.2f}"] if bound else ["", ""]
        cells = [
            network,
            f"{size / 1e6:g}",
            peer,
            world,
            servers,
            backups,
            form,
            f"{1e3 * median:.1f}",
            spread,
        ]
        print("| " + " | ".join(map(str, [*cells, *shown])) + " |")


def bound_of(key) -> float | None:
    """Returns the seconds that the bytes of a push and a pull take, if the network has a rate."""
    network, size, peer, world, servers, backups, form = key
    if network not in RATES or servers == 0:
        return None
    travels = size * ROW_BYTES[form] / 4
    # Into a server: the gradients of its shards from every worker, and the sums of the shards that it backs
    # up. A worker receives all values. The sparse pull has no pushes.
    received = (world * travels + backups * size) / servers if world > 1 else 0
    return max(received, travels) / RATES[network]


if __name__ == "__main__":
    main()
