"""The nodes that a class's filters reject: a code for each row, and a verdict for each code.

NumPy counts the codes. So the text of a reason is made once for a class, however many nodes it holds for. The evaluator
keeps the refusals of a class up to date; the board reports them, and `explain` lists them node by node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from session_scheduler.model.columns import BoolColumn, RowIndex

Codes = NDArray[np.int32]
_FITS: Final = -1
_MOST_MASKS: Final = 10
"""Up to this many masks, their combinations are counted in a table."""
NO_NODES: Final = "no nodes available to schedule pods"
"""kube-scheduler's sentence for a cluster without nodes."""


class Verdict(msgspec.Struct, frozen=True):
    """Why a node is rejected: the first plugin that rejects it, and that plugin's texts."""

    plugin: str
    reasons: tuple[str, ...]
    unresolvable: bool = False
    """Whether the plugin would reject the node whichever pods were removed."""


class NodeRefusals(Mapping[int, Verdict]):
    """The verdict of each rejected row, by its place in a view. Rows that fit, and rows without a node, have none."""

    __slots__ = ("_code_of", "_counted", "_resolvable", "codes", "verdicts")

    def __init__(self, codes: Codes, verdicts: Iterable[Verdict] = ()) -> None:
        """`codes` has the place of each row's verdict in `verdicts`, or -1."""
        self.codes = codes
        self.verdicts = list(verdicts)
        self._code_of = {verdict: code for code, verdict in enumerate(self.verdicts)}
        self._counted: list[tuple[Verdict, int]] | None = None
        self._resolvable: BoolColumn | None = None

    @classmethod
    def none(cls, rows: int) -> NodeRefusals:
        """Return the refusals of this many rows that all fit."""
        return cls(np.full(rows, _FITS, np.int32))

    @classmethod
    def of_rows(cls, verdicts: Iterable[Verdict | None]) -> NodeRefusals:
        """Return the refusals with this verdict for each row; None for a row that fits."""
        code_of: dict[Verdict, int] = {}
        codes = [_FITS if one is None else code_of.setdefault(one, len(code_of)) for one in verdicts]
        return cls(np.array(codes, np.int32), code_of)

    @classmethod
    def of_masks(cls, plugin: str, masks: Mapping[str, BoolColumn], unresolvable: BoolColumn) -> NodeRefusals:
        """Return one plugin's refusals; `masks` has the rows of each text."""
        texts, columns = tuple(masks), (*masks.values(), unresolvable)
        if len(columns) > _MOST_MASKS:
            rows = zip(*(column.tolist() for column in columns), strict=True)
            return cls.of_rows(_verdict(plugin, texts, row) for row in rows)
        bits = np.zeros(len(unresolvable), np.uint16)
        for place, column in enumerate(columns):
            bits |= column.astype(np.uint16) << np.uint16(place)
        found = np.flatnonzero(np.bincount(bits, minlength=1 << len(columns)))
        code_of = np.zeros(1 << len(columns), np.int32)
        code_of[found] = np.arange(len(found))
        verdicts = (_verdict(plugin, texts, [each >> place & 1 for place in range(len(columns))])
                    for each in found.tolist())  # fmt: skip
        return cls(code_of[bits], verdicts)

    # ------------------------------------------------------------------ changes

    def put(self, places: RowIndex, found: NodeRefusals) -> None:
        """Replace the verdicts at these places."""
        self._counted = self._resolvable = None
        if found.verdicts == self.verdicts:
            self.codes[places] = found.codes
            return
        code_of = [self._code(verdict) for verdict in found.verdicts]
        self.codes[places] = np.array([*code_of, _FITS], np.int32)[found.codes]  # -1 is the last entry

    def _code(self, verdict: Verdict) -> int:
        code = self._code_of.get(verdict)
        if code is None:
            code = self._code_of[verdict] = len(self.verdicts)
            self.verdicts.append(verdict)
        return code

    # ------------------------------------------------------------------ answers

    @property
    def nbytes(self) -> int:
        """The memory of the columns."""
        return self.codes.nbytes + (self._resolvable.nbytes if self._resolvable is not None else 0)

    def counted(self) -> list[tuple[Verdict, int]]:
        """Return each verdict with the number of its rows, which is at least 1."""
        if self._counted is None:
            counts = np.bincount(self.codes + 1, minlength=1)[1:].tolist()
            self._counted = [(self.verdicts[code], count) for code, count in enumerate(counts) if count]
        return self._counted

    def texts(self) -> Counter[str]:
        """Return the number of rows by text."""
        found: Counter[str] = Counter()
        for verdict, count in self.counted():
            for text in verdict.reasons:
                found[text] += count
        return found

    def plugins(self) -> Counter[str]:
        """Return the number of rows that each plugin rejects."""
        found: Counter[str] = Counter()
        for verdict, count in self.counted():
            found[verdict.plugin] += count
        return found

    def resolvable(self) -> BoolColumn:
        """Return the rejected rows that might fit without some of their pods. Read only."""
        if self._resolvable is None:
            helps = np.array([*(not verdict.unresolvable for verdict in self.verdicts), False], np.bool_)
            self._resolvable = helps[self.codes]
        return self._resolvable

    # ------------------------------------------------------------------ as a mapping

    def __getitem__(self, place: int) -> Verdict:
        code = int(self.codes[place])
        if code == _FITS:
            raise KeyError(place)
        return self.verdicts[code]

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self.codes != _FITS).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self.codes != _FITS))


def _verdict(plugin: str, texts: Sequence[str], holds: Sequence[object]) -> Verdict:
    """Return the verdict of a row; the last entry of `holds` is whether it is unresolvable."""
    reasons = tuple(text for text, here in zip(texts, holds, strict=False) if here)
    return Verdict(plugin, reasons, unresolvable=bool(holds[-1]))


def summarise(nodes: int, texts: Mapping[str, int], available: int = 0) -> str:
    """kube-scheduler's sentence: "0/6 nodes are available: 4 Insufficient cpu, 2 node(s) were unschedulable.".

    `texts` has the number of nodes of each text.
    """
    if not nodes:
        return NO_NODES
    parts = sorted(f"{count} {text}" for text, count in texts.items() if count)
    sentence = f"{available}/{nodes} nodes are available"
    return f"{sentence}: {', '.join(parts)}." if parts else f"{sentence}."
