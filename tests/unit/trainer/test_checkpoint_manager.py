import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.end_announcements import ServerTermination
from tfdist.coordination.stop_signals import Notice
from tfdist.datasets.open_data import open_data
from tfdist.trainer.checkpoint_manager import CheckpointManager
from tfdist.trainer.config import read_config
from tfdist.trainer.run_context import RunContext
from tfdist.trainer.run_folder import RunFolder


@pytest.mark.parametrize("number", [float, np.float32])
def test_an_accuracy_is_enough_whatever_it_was_counted_in(number, tmp_path, cache):
    config = tmp_path / "x.yaml"
    config.write_text("train: {until_accuracy: 0.9}")
    strategy, data = tf.distribute.get_strategy(), open_data("digits", cache_dir=cache)
    settings = read_config(config)
    checkpoint_manager = CheckpointManager(
        RunContext(
            settings.config,
            ClusterConfig(),
            strategy,
            data,
            RunFolder.at(tmp_path),
            Notice(),
            ServerTermination(()),
        )
    )
    assert [
        checkpoint_manager.has_enough({"accuracy": float(number(each))}) for each in (0.8999, 0.9, 1.0)
    ] == [
        False,
        True,
        True,
    ]
    assert not checkpoint_manager.has_enough({})
