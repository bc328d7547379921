"""Share the fixtures of the tests of Keras's models."""

import pytest


@pytest.fixture
def in_float64():
    """Make Keras 3 compute in float64."""
    import keras

    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])
