"""What TensorFlow's collectives do not take travels in the types that they do, with the same bits."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.errors import ConfigError  # noqa: E402
from tfdist.strategies.bitcast_for_collectives import from_collective_type, to_collective_type  # noqa: E402

TAKEN = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
OTHERS = (
    *(tf.int8, tf.int16, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.bfloat16, tf.complex64, tf.complex128),
)


@pytest.mark.parametrize("dtype", [*TAKEN, *OTHERS, tf.bool], ids=lambda dtype: dtype.name)
def test_a_value_comes_back_with_its_bits(dtype):
    bits = np.random.default_rng(1).integers(0, 256, 4 * dtype.size * 3).astype(np.uint8)
    value = bits % 2 == 1 if dtype == tf.bool else bits.view(dtype.as_numpy_dtype)
    for tensor in (tf.constant(value), tf.constant(value[:12].reshape(3, 4)), tf.constant(value[0])):
        sent = to_collective_type(tensor)
        back = from_collective_type(sent, dtype)
        assert sent.dtype in TAKEN
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert back.numpy().tobytes() == tensor.numpy().tobytes()


def test_text_is_refused():
    with pytest.raises(ConfigError, match="text in a tensor: cannot be sent to other mirrored workers"):
        to_collective_type(tf.constant(["a"]))
