"""Predict how fast a cluster trains: a discrete-event simulation of links, processors and stragglers."""

from tfdist.simulation.advice import advise
from tfdist.simulation.forecasting import Forecast, forecast
from tfdist.simulation.machine import check_machine
from tfdist.simulation.plotting import draw
from tfdist.simulation.published import check_published
from tfdist.simulation.setup import Setup, read_setup

__all__ = [
    "Forecast",
    "Setup",
    "advise",
    "check_machine",
    "check_published",
    "draw",
    "forecast",
    "read_setup",
]
