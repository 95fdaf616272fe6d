"""The states of a cursor, and the complete table of moves.

```
             enlist ──────────► READING ◄── FIND ── SEARCHING ◄── enlist, below the end of a snapshot
                                 │  ▲
         STOP: a corrupt batch   │  └── ADVANCE, SKIP, PASS: it stays where it is in this picture
                                 ▼
                               HALTED
```

From every state a cursor may END: it has joined another, or none of its consumers is left on it. A
halted cursor goes on only in a new session, which begins where the cursor stands. If retention
passes it meanwhile (PASS), it does not move: the new session finds that, and counts what is lost.

Whether a reading cursor is at the tail or catching up is no state. It follows from where the others
are: the foremost is the tail (`cursor.find_tail`). A cursor whose position is not in its log any
more is not one either: if it is not halted, it moves to the log's start at once (PASS), or its
stream stops.

A consumer that cannot keep up is on no cursor at all. It is parked (`Standing.parked`): `Cursors.park`
takes it off, and `Cursors.resume` puts it on a cursor at the position where it left.
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """What a cursor (a reading position in a partition) does."""

    SEARCHING = "searching"
    """Waits until its last messages are found (worker/last_messages.py)."""
    READING = "reading"
    HALTED = "halted"
    """A corrupt batch is in the way. Cursors that reach it halt as well."""
    ENDED = "ended"
    """Is not used any more."""


class Move(enum.Enum):
    """What happens to a cursor; TRANSITIONS says which state follows."""

    FIND = "find"
    """Its last messages are found."""
    ADVANCE = "advance"
    """A round has given its consumers everything up to a later offset."""
    SKIP = "skip"
    """None of its consumers wants what lies before a later offset."""
    PASS = "pass"
    """Retention has deleted what lies before a later offset. Only a halted cursor stays where it
    was."""
    STOP = "stop"
    """The next batch cannot be read, or it has joined a cursor that is halted."""
    END = "end"


TRANSITIONS: dict[State, dict[Move, State]] = {
    State.SEARCHING: {
        Move.FIND: State.READING,
        Move.PASS: State.SEARCHING,
        Move.END: State.ENDED,
    },
    State.READING: {
        Move.ADVANCE: State.READING,
        Move.SKIP: State.READING,
        Move.PASS: State.READING,
        Move.STOP: State.HALTED,
        Move.END: State.ENDED,
    },
    State.HALTED: {
        Move.PASS: State.HALTED,
        Move.STOP: State.HALTED,
        Move.END: State.ENDED,
    },
    State.ENDED: {},
}
