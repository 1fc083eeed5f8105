"""The position of a rank in a stream.

Law: the committed position moves only by an optimizer step, past all batches that were handed out
for it, or by `seek` to another position. After `seek`, all batches that were requested before are stale.
"""

from __future__ import annotations

import dataclasses

from thinwire.elastic.deal import Deal, Place
from thinwire.elastic.stream import Position, Stream


class Cursor:
    """Positions in a stream up to which steps were made, batches were handed out, and batches were
    requested."""

    def __init__(self, stream: Stream) -> None:
        """Starts at the beginning of the stream."""
        self.stream = stream
        self.turn = 0
        """Number of seeks. A `Deal` that was requested before the last seek is stale."""
        self._committed = self._ahead = self._asked = Position()

    @property
    def position(self) -> Position:
        """The position up to which optimizer steps have been made."""
        return self._committed

    @property
    def number(self) -> int:
        """The pass of the batch that is handed out next."""
        return self._ahead.number

    def ask(self, place: Place) -> Deal:
        """Returns the part of the next batch that the rank in `place` must load."""
        batch = self.stream.at(self._asked)
        self._asked = self.stream.after(batch)
        return Deal(batch, place)

    def hand_out(self, deal: Deal) -> None:
        """Moves past a batch that was loaded."""
        if deal.batch.number == self._committed.number:
            self._committed = dataclasses.replace(self._committed, begun=True)
        self._ahead = self.stream.after(deal.batch)

    def commit(self) -> None:
        """Moves the position past all batches handed out, after an optimizer step with them."""
        self._committed = self._ahead

    def seek(self, position: Position | None = None) -> None:
        """Goes back to the last optimizer step, or to another position.

        # Errors

        InvalidError if no batch begins there; nothing is changed in that case.
        """
        if position is not None:
            self.stream.check(position)
            self._committed = position
        self._ahead = self._asked = self._committed
        self.turn += 1


class CursorSource:
    """Data of a job whose batches a cursor deals."""

    def __init__(self, stream: Stream) -> None:
        """Starts at the beginning of the stream."""
        self._cursor = Cursor(stream)

    @property
    def stream(self) -> Stream:
        """The batches of all ranks."""
        return self._cursor.stream

    @property
    def position(self) -> Position:
        """The position up to which optimizer steps have been made."""
        return self._cursor.position

    def commit(self) -> None:
        """Moves the position past all batches handed out, after an optimizer step with them."""
        self._cursor.commit()

    def seek(self, position: Position | None = None) -> None:
        """Goes back to the last optimizer step, or to another position, for this rank's current place.

        # Errors

        InvalidError if no batch begins there; nothing is changed in that case.
        """
        self._cursor.seek(position)
