"""A view: a summary in words, figures and tables, shown by notebooks, the dashboard and reports alike. Public."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

__all__ = ["Column", "Figure", "Table", "View"]

Source = Mapping[str, Sequence[Any]]
"""Columns of equal length by name: lists, or arrays of numpy."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table."""

    title: str
    numeric: bool = False
    """Numbers are aligned to the right."""
    link: str = ""
    """A page of the dashboard for each cell, with {} for its value, such as "pending?pod={}"; empty for none."""


class Table(msgspec.Struct, frozen=True):
    """Rows of plain values."""

    name: str
    """Unique in its view: lower case, digits and -."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    left_out: int = 0
    """How many further rows the view does not show."""
    optional: bool = False
    """Whether a page leaves the table out while it has no rows."""


class Figure(msgspec.Struct, frozen=True):
    """A plot whose data can be replaced while it is shown: the drawing stays, its sources change."""

    name: str
    title: str
    text: str
    """What the figure shows at this time, in words, for those who do not see it."""
    sources: Mapping[str, Source]
    draw: Callable[[Mapping[str, ColumnDataSource]], Model]
    """Makes the plot from its sources, by name. Called once for each page; equal figures draw equally."""
    least: int = 1
    """The number of rows that a source needs: without such a source a page shows the text alone."""

    @property
    def has_data(self) -> bool:
        """Whether there is something to draw."""
        return any(len(column) >= self.least for source in self.sources.values() for column in source.values())


class View(msgspec.Struct, frozen=True):
    """One subject: what a page of the dashboard shows, or a cell of a notebook."""

    name: str
    title: str
    summary: str
    """One to three sentences with the most important numbers."""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()

    def __repr__(self) -> str:
        return f"{self.title}: {self.summary}"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        from fluence_lab.render import notebook

        return notebook(self)
