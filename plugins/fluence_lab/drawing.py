"""What the figures share: colours, and plots without a frame. Bokeh is imported when a figure is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bokeh.models import Axis, ColumnDataSource
    from bokeh.plotting import figure

BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
ORANGE: Final = "#E69F00"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
YELLOW: Final = "#F0E442"
GREY: Final = "#8c8c8c"
"""Okabe and Ito's palette, which is distinct for people with any colour vision, and a grey."""
INK: Final = "#757575"
"""For text inside of a plot until the page's script sets the page's colour: 4.5:1 on white and on black."""
MOST_ALPHA: Final = 0.75
"""The opacity of full cells: on them, the page's text has a contrast of 4.5 in light and dark."""
_MOST_LETTERS: Final = 56
"""How many letters fit beside each other on a narrow screen."""
_LINE: Final = 48
"""The length of a label's lines: with wide letters, too, they fit on a narrow screen."""
_MORE: Final = 0.45
"""What each further line of a label adds to its row's height of 1."""
PODS: Final = "pods"
"""The label of an axis about numbers of pods."""
INKED: Final = "ink"
"""The name of glyphs whose text has the page's colour: see `render.FIGURE_SCRIPT`."""
LABELS: Final = "ink-label"
"""The name of such glyphs that also have the page's background, so that grid lines end beside the text."""


def plot(**options: Any) -> figure:
    """A plot as wide as its page, with the page's background."""
    from bokeh.plotting import figure

    made = figure(
        sizing_mode="stretch_width",
        toolbar_location=None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=12,  # half of the first tick's number
        min_border_right=20,
        **{"tools": "", "height": 240, "output_backend": "canvas", **options},
    )
    if "x_axis_type" not in options:
        made.scatter([0], [0], size=0, alpha=0)  # so that the ranges exist without data
    made.grid.grid_line_color = GREY
    made.grid.grid_line_alpha = 0.4
    return made


def times(made: figure) -> None:
    """Show the x axis, in milliseconds since 1970, as times; the finest are seconds."""
    from bokeh.models import DatetimeTicker, DatetimeTickFormatter

    ticker = DatetimeTicker()
    ticker.tickers = ticker.tickers[1:]  # the first one is of milliseconds
    made.xaxis.ticker = made.xgrid.ticker = ticker
    made.xaxis.formatter = DatetimeTickFormatter(
        seconds="%H:%M:%S", minsec="%H:%M:%S", minutes="%H:%M", hourmin="%H:%M", hours="%H:%M", days="%d %b"
    )
    made.xaxis.axis_label = "time (UTC)"


def legend(made: figure) -> None:
    """Place the legend above the plot, in the page's colours."""
    legends = made.legend
    made.add_layout(legends[0], "above")
    legends.orientation = "horizontal"
    legends.ncols = 3
    legends.background_fill_color = None
    legends.border_line_color = None
    legends.label_text_color = INK
    items: Any = legends[0].items
    for item in items:  # one without data has no symbol
        item.visible = any(len(column) for each in item.renderers for column in each.data_source.data.values())


def bars(source: ColumnDataSource, value: str, colour: str, label: str, most: float | None = None) -> figure:
    """Horizontal bars of a source with `y`, `label` and the value, each below its label."""
    from bokeh.models import DataRange1d, Range1d

    shown = DataRange1d(start=0) if most is None else Range1d(start=0.0, end=most)
    made = plot(x_range=shown, y_range=DataRange1d(end=0.9))
    fit_height(made, source, row=34, base=94, least=120)
    made.hbar(y="y", right=value, height=0.4, color=colour, source=source)
    labels(made, source, 0.4)
    made.yaxis.visible = False
    made.ygrid.visible = False
    made.xaxis.axis_label = label
    if label == PODS:
        count_pods(made.xaxis[0])
    return made


def count_pods(axis: Axis) -> None:
    """Show an axis that counts pods, with ticks at whole numbers."""
    from bokeh.models import BasicTicker

    axis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    axis.axis_label = PODS


def fit_height(
    made: figure, source: ColumnDataSource, *, row: int, base: int, least: int = 0, most: int = 4000
) -> None:
    """Make the plot as high as its rows need, now and after each update.

    Its height is `base`, and `row` for each unit between 0 and the source's lowest `y`.
    """
    made.height = int(min(most, max(least, base - row * min(source.data["y"], default=0))))
    made.tags = [{"source": source.name, "row": row, "base": base, "least": least, "most": most}]


def labels(made: figure, source: ColumnDataSource, height: float) -> None:
    """Write the `label` of each row above its bar of this height, where it fits on a narrow screen, too."""
    from bokeh.transform import dodge

    made.text(
        "x", dodge("y", height / 2), text="label", name=LABELS, y_offset=-3, text_baseline="bottom", text_color=INK,
        text_font_size="12px", source=source,
    )  # fmt: skip


def marks(made: figure, source: ColumnDataSource) -> None:
    """Write the `mark` of each cell into it."""
    made.text(
        "x", "y", text="mark", name=INKED, text_align="center", text_baseline="middle", text_color=INK,
        text_font_size="11px", source=source,
    )  # fmt: skip


def rows(labels: Sequence[str]) -> dict[str, Any]:
    """Where rows are, the first one on top, with their labels in lines that a narrow screen shows in full."""
    lines, ys, y = [wrapped(label) for label in labels], list[float](), 1.0
    for label in lines:
        ys.append(y := below(y, label))
    return {"x": [0.0] * len(lines), "y": ys, "label": lines}


def wrapped(label: str) -> str:
    """A label in lines that fit on a narrow screen; a label that is indented stays so."""
    text = label.lstrip("\N{NO-BREAK SPACE}")
    indent = label[: len(label) - len(text)]
    return "\n".join(wrap(text, _LINE, initial_indent=indent, subsequent_indent=indent))


def below(y: float, label: str, height: float = 1.0) -> float:
    """The `y` of a row below another one: its height, and one for the further lines of its label, is between them."""
    return round(y - height - _MORE * label.count("\n"), 2)


def fit_narrow(names: Sequence[str], cells: int | None = None) -> bool:
    """Whether each of the cells (default: one for each name) of a row can show a name on a narrow screen."""
    return (len(names) if cells is None else cells) * max(map(len, names), default=0) <= _MOST_LETTERS


def hover(made: figure, glyphs: Sequence[Any], *tips: tuple[str, str]) -> None:
    """Show a text at the pointer: pairs of a title and a column such as @name; @from and @to are times."""
    from bokeh.models import HoverTool

    times: dict[str, Any] = {"@from": "datetime", "@to": "datetime"}
    made.add_tools(HoverTool(renderers=list(glyphs), tooltips=list(tips), formatters=times))


def timeline(labels: ColumnDataSource, *, base: int) -> figure:
    """A plot of rows over time, as high as its labelled rows need. `base`: see `fit_height`."""
    from bokeh.models import DataRange1d

    made = plot(x_axis_type="datetime", y_range=DataRange1d(end=0.9))
    fit_height(made, labels, row=36, base=base)
    made.yaxis.visible = False
    made.ygrid.visible = False
    times(made)
    return made


def spans(made: figure, sources: Mapping[str, ColumnDataSource], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the rows of a timeline: a bar for each row of the sources in `looks`, which has their colour and hatching.

    These sources have `y`, `from`, `to` and `name`; `labels` has the rows, and `now` a line.
    """
    made.line("x", "y", color=GREY, line_dash="dotted", legend_label="now", source=sources["now"])
    bars = [
        made.hbar(y="y", left="from", right="to", height=0.35, legend_label=kind, source=sources[kind], **look)
        for kind, look in looks.items()
    ]
    hover(made, bars, ("", "@name"), ("from", "@from{%F %T}"), ("to", "@to{%F %T}"))
    labels(made, sources["labels"], 0.35)
