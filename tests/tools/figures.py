"""What stands where in a figure that is drawn."""

from matplotlib.axis import Tick
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def texts_of(figure):
    """The visible texts of a figure as it is laid out, each with its box in pixels."""
    FigureCanvasAgg(figure).draw()
    ticks = {label for tick in figure.findobj(Tick) for label in (tick.label1, tick.label2)}
    shown = {label for ax in figure.axes if ax.axison for axis in (ax.xaxis, ax.yaxis) for label in drawn_ticks(axis)}
    return [(text, text.get_window_extent()) for text in figure.findobj(Text)
            if text.get_visible() and text.get_text().strip() and (text not in ticks or text in shown)]


def drawn_ticks(axis):
    """The labels of an axis that lie within its limits."""
    low, high = sorted(axis.get_view_interval())
    margin = 1e-9 * (high - low)
    return [label for tick in axis.get_major_ticks() if low - margin <= tick.get_loc() <= high + margin
            for label in (tick.label1, tick.label2) if label.get_visible()]
