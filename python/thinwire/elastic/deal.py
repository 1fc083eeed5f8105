"""The division of a step's batch over the ranks of an epoch.

Law: the parts are consecutive, contain every row once, and differ in length by at most one row;
lower ranks have the longer parts. They depend on the batch and the number of ranks alone, so when
fewer ranks repeat a step, all its rows are the same. The crate `member` divides batches in the same
way.
"""

from __future__ import annotations

import dataclasses

from thinwire.elastic.stream import Batch


@dataclasses.dataclass(frozen=True)
class Place:
    """The number of an epoch, and in that epoch a rank and the number of ranks."""

    epoch: int
    rank: int
    world: int


@dataclasses.dataclass(frozen=True)
class Deal:
    """One rank's part of a batch, and the place for which it was determined."""

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
        """Rows that this rank computes: its own or, if it has none, the last row of the batch with weight
        0, since every rank takes part in every step."""
        return self.rows or range(self.batch.end - 1, self.batch.end)

    @property
    def weight(self) -> float:
        """This rank's fraction of the batch's rows, which is the weight of its mean gradient."""
        return len(self.rows) / self.batch.length
