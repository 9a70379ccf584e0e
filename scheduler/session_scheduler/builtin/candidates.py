"""The search for candidate nodes in the cached results of earlier trials: it computes only the rows that have changed.

It finds the candidates that a search node by node would find, with the same answers of callbacks: `DefaultPreemption`
uses it if the core keeps results for tasks like this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import numpy as np

from session_scheduler.errors import FluenceError
from session_scheduler.framework.row_results import RowResults
from session_scheduler.framework.victims import Candidate
from session_scheduler.hookspecs import Trial
from session_scheduler.model.columns import BoolColumn, IntColumn, RowIndex

NO_VICTIMS: Final = "No preemption victims found for incoming pod"
Found = Candidate | list[str] | FluenceError
"""The node's candidate, the reasons why it has none, or the plugin's failure that ended its dry run."""
DryRun = Callable[[Sequence[str]], Mapping[str, tuple[Found, bool]]]
"""By node: what a dry run finds, and whether other tasks may share it."""
_KIND, _WHAT, _PRICE, _START = 0, 1, 2, 6
"""The columns: the kind of result; the number of its reasons, or of its victims' traits; the four numbers of its price;
and the number of the time at which its most important victim began to run.
"""
WIDTH: Final = 7
_REFUSED, _CANDIDATE, _FAILED = 0, 1, 2
_ASK_EACH = -1
"""Instead of the number of the traits: callbacks promise nothing."""


class CandidateSearch:
    """The search of one trial."""

    def __init__(self, trial: Trial, results: RowResults, now: int, dry_run: DryRun) -> None:
        """`results` are those of `trial.results(WIDTH, now)`."""
        self._trial = trial
        self._results = results
        self._now = now
        self._dry_run = dry_run
        self._own: dict[int, Found] = {}
        """By row: the results that other tasks do not share."""
        self._searched: list[tuple[RowIndex, IntColumn]] = []
        """The rows in order, each time with their numbers."""
        self._found: list[IntColumn] = []
        """The prices of the candidates found."""
        self.rejected: dict[int, str] = {}
        """By row, in order: why callbacks reject its cheapest victims."""
        self.failure: FluenceError | None = None
        """The first failure of a plugin."""

    def find(self, rows: RowIndex, enough: int) -> RowIndex:
        """The candidates among these rows, in this order: until there are `enough`, and one violates no budget."""
        found, count, spares, step = rows[:0], 0, False, max(1, enough)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            numbers = self._numbers(part)
            self._searched.append((part, numbers))
            places = self._allowed(part, numbers, enough - count, spares=spares)
            found = np.concatenate((found, part[places])) if count else part[places]
            count += len(places)
            self._found.append(numbers[_PRICE:, places])
            spares = spares or not numbers[_PRICE, places].all()
            if count >= enough and spares:
                break
        return found

    def best(self, found: RowIndex) -> Candidate:
        """The best of the candidates that `find` has returned, like `victims.best`."""
        left = self._found[0] if len(self._found) == 1 else np.concatenate(self._found, axis=1)
        for column in range(_START - _PRICE):
            least = np.flatnonzero(left[column] == left[column].min())
            if len(least) < len(found):
                found, left = found[least], left[:, least]
        starts = left[-1].tolist()
        last = max(set(starts), key=self._results.things.__getitem__)
        return self.candidate(int(found[starts.index(last)]))

    def candidate(self, row: int) -> Candidate:
        """The candidate on a row."""
        return cast(Candidate, self._value(row))

    def reasons(self) -> Counter[str]:
        """By text, the number of searched nodes that have no candidate for this reason."""
        found = Counter(self.rejected.values())
        for part, numbers in self._searched:
            refused = numbers[_KIND] == _REFUSED
            _, first, counts = np.unique(numbers[_WHAT][refused], return_index=True, return_counts=True)
            for row, count in zip(part[refused][first].tolist(), counts.tolist(), strict=True):
                for text in cast(list[str], self._value(row)):
                    found[text] += count
        return found

    # ------------------------------------------------------------------ inside

    def _value(self, row: int) -> Found:
        return self._own[row] if row in self._own else self._results.values[row]

    def _allowed(self, part: RowIndex, numbers: IntColumn, wanted: int, *, spares: bool) -> RowIndex:
        """The places of the candidates to whose victims callbacks do not object: until there are `wanted`, and one
        violates no budget (or `spares`). Asks callbacks in this order, once for equal victims.
        """
        places = np.flatnonzero(numbers[_KIND] == _CANDIDATE)
        traits, saves = numbers[_WHAT, places], numbers[_PRICE, places] == 0
        allowed = np.ones(len(places), np.bool_)
        asked: set[int] = set()
        objections: dict[int, str] = {}
        end = _end(allowed, saves, wanted, spares=spares)
        for index, number in enumerate(traits.tolist()):
            if index >= end:
                break
            if number in asked:
                continue
            candidate = self.candidate(int(part[places[index]]))
            why = self._trial.objection({self._trial.tasks[0]: candidate.node}, candidate.tasks)
            if number != _ASK_EACH:
                asked.add(number)
            if why is not None:
                alike = np.flatnonzero(traits == number) if number in asked else np.array([index])
                allowed[alike] = False
                end = _end(allowed, saves, wanted, spares=spares)
                objections.update(dict.fromkeys(alike.tolist(), why))
        if not objections:
            return places[:end]
        reached = np.flatnonzero(~allowed[:end]).tolist()
        self.rejected.update({int(part[places[index]]): objections[index] for index in reached})
        return places[:end][allowed[:end]]

    def _numbers(self, part: RowIndex) -> IntColumn:
        """The numbers of these rows, shape [column, place]. Computes and keeps the results that are missing."""
        trial, results = self._trial, self._results
        shared = trial.shares(part)
        places = np.flatnonzero(~(results.are_current(part) & shared))
        numbers = results.numbers.take(part, axis=1)
        if not len(places):
            return numbers
        nodes = {place: trial.node_at(row) for place, row in zip(places.tolist(), part[places].tolist(), strict=True)}
        known = trial.recall([node for place, node in nodes.items() if not shared[place]], self._now)
        unknown = [node for node in nodes.values() if known.get(node) is None]
        found = self._dry_run(unknown) if unknown else {}
        keeps = trial.shares(part[places]).tolist()
        kept, encoded = {}, []
        for (place, node), keep in zip(nodes.items(), keeps, strict=True):
            row, value, of_node = int(part[place]), known.get(node), False
            if value is None:
                value, of_node = found[node]
                if of_node and not keep:
                    trial.keep(node, value, self._now)
            encoded.append(self._encoded(value))
            if keep and of_node:
                kept[place] = value
            else:
                self._own[row] = value
            if isinstance(value, FluenceError):
                self.failure = self.failure or value
        numbers[:, places] = np.array(encoded, np.int64).T
        if kept:
            stored = list(kept)
            results.put(part[stored], kept.values(), numbers[:, stored])
        return numbers

    def _encoded(self, found: Found) -> Sequence[int]:
        """The numbers of a result."""
        if isinstance(found, FluenceError):
            return (_FAILED, 0, 0, 0, 0, 0, 0)
        number_of = self._results.number_of
        if not isinstance(found, Candidate):
            return (_REFUSED, number_of(tuple(found)), 0, 0, 0, 0, 0)
        alike = self._trial.alike(found.tasks)
        traits = _ASK_EACH if alike is None else number_of(alike)
        return (_CANDIDATE, traits, *found.price, number_of(found.first_start))


def _end(allowed: BoolColumn, saves: BoolColumn, wanted: int, *, spares: bool) -> int:
    """The number of places that a search looks at.

    It stops once it has `wanted` allowed candidates and one of them violates no disruption budget. With `spares`, one
    was found before. Otherwise it looks at all places.
    """
    ends = np.flatnonzero(allowed)[max(0, wanted - 1) :]
    saving = np.flatnonzero(allowed & saves) if not spares else ends
    return max(int(ends[0]), int(saving[0])) + 1 if len(ends) and len(saving) else len(allowed)
