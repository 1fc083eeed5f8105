"""Who averages with whom: a pure function of the step and a seed that all ranks share.

KungFu's ranks draw a peer each, which makes the next rank twice as likely as any other, and a rank
may be drawn by many at once. Here all ranks draw the same perfect matching, every matching equally
likely, and so agree without a word. With an odd number of ranks one sits out.
"""

from __future__ import annotations

import random


def partner(rank: int, world: int, step: int, seed: int = 0) -> int:
    """The rank with which `rank` averages in `step`; itself if it sits out.

    Law: partner(partner(rank)) == rank.
    """
    generator = random.Random(f"{seed}/{step}")
    order = sorted(range(world), key=lambda _: generator.random())
    place = order.index(rank)
    other = place ^ 1
    return order[other] if other < world else rank
