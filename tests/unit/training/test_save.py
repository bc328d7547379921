"""Where `tfdist.save` writes, and where it does not."""

import keras
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.strategies import current_cluster_and_strategy
from tfdist.training.save import save


def test_a_store_that_tensorflow_does_not_know_is_refused_in_one_line():
    with pytest.raises(ConfigError) as caught:
        save(object(), "s3://bucket/model.keras")
    assert str(caught.value) == (
        "save: expected a path, or an address of a store that TensorFlow can write to, received"
        " 's3://bucket/model.keras'. Import the package that adds it, such as tensorflow_io, or save to a path"
    )


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="model: expected a Keras model, received a str"):
        save("model", tmp_path / "model.keras")


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "model.weights.h5", "served"])
def test_an_address_gets_what_a_path_gets(name, tmp_path, monkeypatch):
    monkeypatch.setattr(current_cluster_and_strategy, "_cluster", None)
    monkeypatch.setattr(current_cluster_and_strategy, "_strategy", None)
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential([keras.layers.InputLayer((2,)), keras.layers.Dense(1)])
    save(model, f"ram://bucket/folder/{name}")
    assert list(tmp_path.iterdir()) == []
    if name == "served":
        assert tf.io.gfile.exists("ram://bucket/folder/served/saved_model.pb")
        return
    tf.io.gfile.copy(f"ram://bucket/folder/{name}", name)
    if "weights" in name:
        model.load_weights(name)
    else:
        assert keras.models.load_model(name).count_params() == 3
