"""Predict how fast a cluster trains: a discrete-event simulation of links, processors and stragglers."""

from tfdist.simulation.advice import advise
from tfdist.simulation.plotting import draw
from tfdist.simulation.published import check_published
from tfdist.simulation.setup import Setup, read_setup
from tfdist.simulation.simulated_speed import Forecast, forecast

__all__ = [
    "Forecast",
    "Setup",
    "advise",
    "check_published",
    "draw",
    "forecast",
    "read_setup",
]
