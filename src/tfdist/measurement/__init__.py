"""Measure how fast a config trains on clusters of this machine, where the time goes, and what would help."""

from tfdist.measurement.levers import levers
from tfdist.measurement.scaling import measure_scaling
from tfdist.measurement.showing import as_values, draw, show_scaling, show_tuning
from tfdist.measurement.tuning import tune
from tfdist.measurement.ways import Bench

__all__ = ["Bench", "as_values", "draw", "levers", "measure_scaling", "show_scaling", "show_tuning", "tune"]
