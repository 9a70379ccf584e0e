"""A plugin whose pods hold exclusive slots: an allocation that must be correct after every crash."""

from __future__ import annotations

from session_scheduler import Refusal, hookimpl

SLOTS = 2
"""The exclusive slots of a node: fewer than the pods that fit by cpu."""


class Taken:
    """The slots allocated to some tasks."""

    def __init__(self, plugin, slots):
        self._plugin, self._slots = plugin, slots
        self.redo()

    @property
    def nodes(self):
        return {task: place[0] for task, place in self._slots.items()}

    @property
    def holds(self):
        return {task: {"node": place[0], "slot": place[1]} for task, place in self._slots.items()}

    def undo(self):
        for task in self._slots:
            del self._plugin.held[task.uid]

    def redo(self):
        self._plugin.held.update({task.uid: place for task, place in self._slots.items()})

    def release(self, tasks):
        for task in tasks:
            del self._plugin.held[task.uid]
            del self._slots[task]


class Slots:
    """Each pod holds one numbered slot of its node, and no other pod holds it at the same time."""

    name = "slots"

    def __init__(self):
        self.held = {}

    @hookimpl
    def place_group(self, session, tasks, room):
        names, taken, found = session.table.names(), set(self.held.values()), {}
        left = {cls: rows.copy() for cls, rows in room.items()}
        for task in tasks:
            rows = left[task.cls]
            free = [
                (row, (names[row], slot))
                for row in rows.nonzero()[0]
                for slot in range(SLOTS)
                if (names[row], slot) not in taken
            ]
            if free:
                row, found[task] = min(free, key=lambda one: (sum(p[0] == one[1][0] for p in taken), one[1]))
                taken.add(found[task])
                rows[row] -= 1
        return Taken(self, found) if found else Refusal("no slot is free")

    @hookimpl
    async def cancel(self, allocation):
        self.held.pop(allocation.uid, None)

    @hookimpl
    def recover(self, holdings):
        lost = {}
        for one in holdings:
            place = (one.held["node"], one.held["slot"]) if one.held else None
            if place is not None and place in {p for uid, p in self.held.items() if uid != one.task.uid}:
                lost[one.task.uid] = f"slot {place} is another's"
            elif place is not None:
                self.held[one.task.uid] = place
        return lost
