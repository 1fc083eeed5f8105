"""From the peers' JSON lines on stdin to tables: one per network and world, one row per size.

A cell is the median over alternations of each run's median. `floor` is 2(n-1)/n * bytes over what
one plain TCP stream carried each way in the same run, both ways at once; ratios are to thinwire
where it ran, else to the floor. Standard library only.
"""

import collections
import json
import statistics
import sys

REFERENCE = "thinwire"


def main() -> None:
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    network_worlds = collections.defaultdict(list)
    streams = collections.defaultdict(list)
    worlds_seen = []
    for line in sys.stdin:
        record = json.loads(line)
        if record["peer"].startswith("tcp "):
            rate = record["bytes"] / record["seconds_median"]
            streams[record["network"], record["peer"]].append(rate)
            continue
        where = record["network"], record["world"]
        if where not in worlds_seen:
            worlds_seen.append(where)
        groups[where + (record["bytes"],)][record["peer"]].append(record["seconds_median"])
        if record["peer"] not in network_worlds[where]:
            network_worlds[where].append(record["peer"])
    for where in worlds_seen:
        print_table(where, network_worlds[where], groups, streams)


def print_table(where, peers, groups, streams) -> None:
    network, world = where
    one = median(streams.get((network, "tcp one way"), []))
    both = median(streams.get((network, "tcp both ways"), []))
    streams_in_words = f"{rate(one)} one way, {rate(both)} each way at once"
    print(f"\n{network}, {world} ranks; one plain TCP stream: {streams_in_words}\n")
    head = ["MiB", "floor ms"]
    for peer in peers:
        head += [f"{peer} ms", "spread", "x floor"]
        if REFERENCE in peers and peer != REFERENCE:
            head.append(f"{peer} / {REFERENCE}")
    rows = [row(size, world, peers, groups[where + (size,)], both) for size in sizes(groups, where)]
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    for cells in [head, ["-" * (width - 1) + ":" for width in widths], *rows]:
        print("| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths)) + " |")


def row(size, world, peers, seconds, rate_both) -> list:
    floor = 2 * (world - 1) / world * size / rate_both if rate_both else None
    cells = [f"{size / 2**20:g}", milliseconds(floor)]
    reference = median(seconds.get(REFERENCE, []))
    for peer in peers:
        mine = median(seconds.get(peer, []))
        cells += [milliseconds(mine), spread(seconds.get(peer, [])), ratio(mine, floor)]
        if REFERENCE in peers and peer != REFERENCE:
            cells.append(ratio(mine, reference))
    return cells


def sizes(groups, where) -> list:
    return sorted(key[2] for key in groups if key[:2] == where)


def median(values):
    return statistics.median(values) if values else None


def spread(values) -> str:
    """Lowest to highest of the alternations, relative to their median."""
    if len(values) < 2:
        return "-"
    middle = statistics.median(values)
    return f"{min(values) / middle:.2f}-{max(values) / middle:.2f}"


def ratio(mine, other) -> str:
    return f"{mine / other:.2f}" if mine and other else "-"


def milliseconds(value) -> str:
    return f"{value * 1000:.2f}" if value else "-"


def rate(value) -> str:
    return f"{value / 1e6:.1f} MB/s" if value else "unknown"


if __name__ == "__main__":
    main()
