"""Where `tfdist.save` does not write."""

import pytest

from tfdist.errors import ConfigError
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
