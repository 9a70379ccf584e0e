"""The search for candidate nodes in the cached results of earlier trials: it computes only the rows that have changed.

It finds the candidates that a search node by node would find, with the same answers of callbacks: `DefaultPreemption`
uses it if the core keeps results for tasks like this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np

from session_scheduler.errors import FluenceError
from session_scheduler.framework.row_results import RowResults
from session_scheduler.framework.victims import Candidate
from session_scheduler.hookspecs import Trial
from session_scheduler.model.columns import IntColumn, RowIndex

NO_VICTIMS: Final = "No preemption victims found for incoming pod"
Found = Candidate | list[str] | FluenceError
"""The node's candidate, the reasons why it has none, or the plugin's failure that ended its dry run."""
DryRun = Callable[[Sequence[str]], Mapping[str, tuple[Found, bool]]]
"""By node: what a dry run finds, and whether other tasks may share it."""
_KIND, _WHAT, _PRICE = 0, 1, 2
"""The columns: the kind of result; the number of its reasons, or of its victims' traits; and four numbers."""
WIDTH: Final = 6
_REFUSED, _CANDIDATE, _FAILED = 0, 1, 2
_ASK_EACH = -1
"""In place of the number of the traits: callbacks promise nothing."""


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
        self._objections: dict[int, str | None] = {}
        """By number of the traits of victims: why callbacks object."""
        self.rejected: dict[int, str] = {}
        """By row, in order: why callbacks reject its cheapest victims."""
        self.failure: FluenceError | None = None
        """The first failure of a plugin."""

    def find(self, rows: RowIndex, enough: int) -> RowIndex:
        """The candidates among these rows, in this order: until there are `enough`, and one violates no budget."""
        found: list[int] = []
        spares = False
        step = max(1, enough)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            numbers = self._numbers(part)
            self._searched.append((part, numbers))
            for row, spares_one in self._allowed(part, numbers):
                found.append(row)
                spares |= spares_one
                if len(found) >= enough and spares:
                    return np.array(found, np.int64)
        return np.array(found, np.int64)

    def best(self, rows: RowIndex) -> Candidate:
        """The best of these candidates, as `victims.best`."""
        all_rows = np.concatenate([part for part, _ in self._searched])
        numbers = np.concatenate([numbers for _, numbers in self._searched], axis=1)
        places = np.flatnonzero(np.isin(all_rows, rows))
        for column in numbers[_PRICE:]:
            there = column[places]
            places = places[there == there.min()]
        return max(map(self.candidate, all_rows[places].tolist()), key=lambda candidate: candidate.first_start)

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

    def _allowed(self, part: RowIndex, numbers: IntColumn) -> Iterator[tuple[int, bool]]:
        """The candidates to whose victims callbacks do not object: (row, whether they violate no budget)."""
        places = np.flatnonzero(numbers[_KIND] == _CANDIDATE)
        columns = part[places].tolist(), numbers[_WHAT][places].tolist(), numbers[_PRICE][places].tolist()
        for row, alike, violations in zip(*columns, strict=True):
            why = self._objection(row, alike)
            if why is None:
                yield row, not violations
            else:
                self.rejected[row] = why

    def _objection(self, row: int, alike: int) -> str | None:
        if alike not in self._objections:
            candidate = self.candidate(row)
            why = self._trial.objection({self._trial.tasks[0]: candidate.node}, candidate.tasks)
            if alike == _ASK_EACH:
                return why
            self._objections[alike] = why
        return self._objections[alike]

    def _numbers(self, part: RowIndex) -> IntColumn:
        """The numbers of these rows, shape [column, place]. Computes and keeps the results that are missing."""
        trial, results = self._trial, self._results
        shared = trial.shares(part)
        missing = ~(results.are_current(part) & shared)
        numbers = results.numbers[:, part]
        if not missing.any():
            return numbers
        places = np.flatnonzero(missing).tolist()
        nodes = {place: trial.node_at(int(part[place])) for place in places}
        known = trial.recall([node for place, node in nodes.items() if not shared[place]], self._now)
        unknown = [node for node in nodes.values() if known.get(node) is None]
        found = self._dry_run(unknown) if unknown else {}
        keeps = trial.shares(part[places]).tolist()
        for (place, node), keep in zip(nodes.items(), keeps, strict=True):
            row, value, of_node = int(part[place]), known.get(node), False
            if value is None:
                value, of_node = found[node]
                if of_node and not keep:
                    trial.keep(node, value, self._now)
            encoded = self._encoded(value)
            numbers[:, place] = encoded
            if keep and of_node:
                results.put(row, value, encoded)
            else:
                self._own[row] = value
            if isinstance(value, FluenceError):
                self.failure = self.failure or value
        return numbers

    def _encoded(self, found: Found) -> Sequence[int]:
        """The numbers of a result."""
        if isinstance(found, FluenceError):
            return (_FAILED, 0, 0, 0, 0, 0)
        if not isinstance(found, Candidate):
            return (_REFUSED, self._results.number_of(tuple(found)), 0, 0, 0, 0)
        alike = self._trial.alike(found.tasks)
        return (_CANDIDATE, _ASK_EACH if alike is None else self._results.number_of(alike), *found.price)
