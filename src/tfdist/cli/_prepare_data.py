"""Prepare the data of a config before its tasks start."""

import logging

from tfdist.cli._load_tensorflow_quietly import load_tensorflow_quietly
from tfdist.trainer.config import Settings

_log = logging.getLogger("tfdist")


def prepare_data(settings: Settings) -> None:
    """Prepare the data, unless that was done before: in a private network, tasks cannot download."""
    from tfdist.datasets.open_data import DataRequest

    request = DataRequest(**settings.config.data.wanted())
    if request.needs_tensorflow:
        _log.info("preparing the data set '%s'", request.name)  # this takes seconds, or minutes
        load_tensorflow_quietly()
    request.open()
