"""The division of a step's batch over the ranks of an epoch.

Law: the parts are consecutive, contain every row once, and differ in length by at most one row;
lower ranks have the longer parts. They depend on the batch and the number of ranks alone, so that
fewer ranks repeat a step with the same rows. The crate `member` deals in the same way.
"""

from __future__ import annotations

import dataclasses

from thinwire.elastic.stream import Batch


@dataclasses.dataclass(frozen=True)
class Place:
    """The number of a rank, and the number of ranks, in one epoch."""

    epoch: int
    rank: int
    world: int


@dataclasses.dataclass(frozen=True)
class Deal:
    """One rank's part of a batch, and the place that it was dealt for."""

    batch: Batch
    place: Place

    @property
    def rows(self) -> range:
        """Offsets of this rank's rows in the pass; empty if there are more ranks than rows."""
        least, longer = divmod(self.batch.length, self.place.world)
        start, end = (
            each * least + min(each, longer) for each in (self.place.rank, self.place.rank + 1)
        )
        return range(self.batch.start + start, self.batch.start + end)

    @property
    def computed(self) -> range:
        """Rows that this rank computes: its own or, where it has none, the last one of the batch, with
        a weight of 0, since every rank takes part in every step."""
        return self.rows or range(self.batch.end - 1, self.batch.end)

    @property
    def weight(self) -> float:
        """Fraction of the batch's rows that is this rank's: the weight of its mean gradient."""
        return len(self.rows) / self.batch.length
