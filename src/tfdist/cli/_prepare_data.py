"""Prepare the data of a config in the launcher, before any task starts."""

from tfdist.cli._quiet_start import load_tensorflow_quietly
from tfdist.trainer.config import Settings

__all__ = ["prepare_data"]


def prepare_data(settings: Settings) -> None:
    """Prepare the data, unless that was done before: in a private network, tasks cannot download."""
    from tfdist.datasets.open_data import DataRequest

    request = DataRequest(**settings.config.data.wanted())
    if request.needs_tensorflow:
        load_tensorflow_quietly()
    request.open()
