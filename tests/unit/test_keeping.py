import numpy as np
import pytest
import tensorflow as tf

from tfdist.config import read_config
from tfdist.data import open_data
from tfdist.keeping import Keeper


@pytest.mark.parametrize("number", [float, np.float32])
def test_an_accuracy_is_enough_whatever_it_was_counted_in(number, tmp_path, cache):
    config = tmp_path / "x.yaml"
    config.write_text("train: {until_accuracy: 0.9}")
    keeper = Keeper(
        tmp_path,
        read_config(config).config,
        open_data("digits", cache_dir=cache),
        tf.distribute.get_strategy(),
        is_chief=True,
    )
    assert [keeper.has_enough({"accuracy": float(number(each))}) for each in (0.8999, 0.9, 1.0)] == [
        False,
        True,
        True,
    ]
    assert not keeper.has_enough({})
