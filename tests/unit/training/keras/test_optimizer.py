"""The slices of a row are added up in advance only for optimizers whose update stays the same."""

import pytest

tf = pytest.importorskip("tensorflow")
keras = tf.keras

from tfdist.training.keras.lazy_adam import LazyAdam  # noqa: E402
from tfdist.training.keras.optimizer import Updating  # noqa: E402

pytestmark = pytest.mark.skipif(keras.__version__ < "3", reason="tfdist updates weights itself with Keras 3")


class Own(keras.optimizers.SGD):
    """An optimizer that may do anything."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: keras.optimizers.SGD(0.1), True),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), True),
        (lambda: LazyAdam(0.1), True),
        (lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1)), True),
        (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), False),
        (lambda: keras.optimizers.SGD(0.1, clipvalue=1.0), False),
        (lambda: LazyAdam(0.1, global_clipnorm=1.0), False),
        (lambda: keras.optimizers.Adam(0.1), False),
        (lambda: keras.optimizers.Adagrad(0.1), False),
        (lambda: Own(0.1), False),
    ],
)
def test_rows_are_added_up_where_the_update_is_linear(make, expected):
    assert Updating(tf.distribute.get_strategy(), make(), []).adds_rows_up is expected
