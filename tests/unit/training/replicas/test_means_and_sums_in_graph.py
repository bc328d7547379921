"""A graph shows whether a number is a mean or a sum over the examples of a batch."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.replicas.means_and_sums_in_graph import is_linear_in, reduction_of  # noqa: E402

ANY_SIZE = tf.TensorSpec([None, 2])


def size(values):
    return tf.cast(tf.shape(values)[0], values.dtype)


@pytest.mark.parametrize(
    ("function", "reduction"),
    [
        (tf.reduce_mean, "mean"),
        (lambda x: tf.cast(tf.reduce_mean(x), tf.float64), "mean"),
        (lambda x: tf.reduce_mean(tf.reduce_sum(x, axis=1)), "mean"),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=0)), "mean"),
        (lambda x: -0.1 * tf.reduce_mean(x) + tf.reduce_mean(x * x), "mean"),
        (lambda x: tf.reduce_mean(x) + tf.reduce_sum(tf.constant([1.0, 2.0]) ** 2), "mean"),
        (lambda x: tf.reduce_sum(x) / size(x), "mean"),
        (lambda x: tf.reduce_sum(tf.stack([tf.reduce_mean(x), 0.5 * tf.reduce_mean(x * x)])), "mean"),
        (lambda x: tf.reduce_sum(tf.stack([tf.reduce_mean(x), tf.reduce_sum(x)])), None),
        (lambda x: tf.math.divide_no_nan(tf.reduce_sum(x), tf.cast(tf.size(x), x.dtype)), "mean"),
        (tf.reduce_sum, "sum"),
        (tf.nn.l2_loss, "sum"),
        (lambda x: tf.reduce_sum(x) * 0.5, "sum"),
        (lambda x: tf.reduce_sum(x) / 2.0, "sum"),
        (lambda x: tf.reduce_mean(tf.reduce_sum(x, axis=0)), "sum"),
        (lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=1)), "sum"),
        (lambda x: tf.reduce_sum(x) + tf.reduce_sum(x * x), "sum"),
        (lambda _: tf.reduce_sum(tf.constant([1.0, 2.0]) ** 2), "same"),
        (lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[1], x.dtype), "sum"),
        (lambda x: tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0)), "sum"),
        (lambda x: tf.reduce_mean(tf.boolean_mask(x, x[:, 0] > 0)), None),
        (lambda x: tf.reduce_mean(x) / size(x), None),
        (lambda x: tf.reduce_sum(x) + 1.0, None),
        (lambda x: tf.reduce_sum(x) + tf.reduce_mean(x), None),
        (lambda x: tf.sqrt(tf.reduce_mean(x)), None),
        (lambda x: tf.reduce_sum(x) / tf.reduce_sum(x * x), None),
        (tf.reduce_max, None),
        (lambda x: tf.reduce_mean(tf.reduce_max(tf.square(x[:, None] - x[None]), 1)), None),
        (lambda x: tf.reduce_sum(tf.abs(tf.expand_dims(x, 0) - tf.expand_dims(x, 1))), None),
        (lambda x: tf.reduce_mean(x[:, :1] - tf.transpose(x[:, :1])), None),
        (lambda x: tf.reduce_mean(x[..., 0][tf.newaxis] * x[:, 1:]), None),
        (lambda x: tf.reduce_mean(tf.einsum("ae,pe->ap", x, x)), None),
        (lambda x: tf.reduce_sum(tf.square(tf.einsum("na,nb->ab", x, x))), None),
        (lambda x: tf.reduce_sum(tf.square(tf.tensordot(x, x, axes=(1, 1)))), None),
        (lambda x: tf.reduce_sum(tf.square(tf.tensordot(x[:, None], x[:, None], axes=(2, 2)))), None),
        (lambda x: tf.reduce_mean(x[:, None] - x[:, :, None]), "mean"),
        (lambda x: tf.reduce_mean(tf.transpose(tf.transpose(x)[None] - tf.transpose(x)[:, None])), "mean"),
        (lambda x: tf.reduce_mean(tf.einsum("nd,nd->n", x, x)), "mean"),
        (lambda x: tf.reduce_mean(tf.einsum("nd,df->nf", x, tf.ones([2, 3]))), "mean"),
        (lambda x: tf.reduce_mean(x + tf.range(size(x))[:, None]), "mean"),
        (lambda x: tf.reduce_mean(x[:, None] + tf.range(size(x))[None, :, None]), "mean"),
        (lambda x: tf.reduce_mean(tf.tensordot(x[:, None], tf.ones([2, 3]), axes=1)), "mean"),
    ],
)
def test_the_reduction_is_that_of_the_function(function, reduction):
    found = []
    tf.function(lambda x: found.append(reduction_of(function(x))), autograph=False).get_concrete_function(
        ANY_SIZE
    )
    assert found == [reduction]


def test_a_penalty_on_a_weight_is_the_same_for_all_examples():
    weight, found = tf.Variable([1.0, 2.0]), []

    def penalized(x):
        found.append(reduction_of(tf.reduce_mean(x) + tf.reduce_sum(weight**2)))

    tf.function(penalized, autograph=False).get_concrete_function(ANY_SIZE)
    assert found == ["mean"]


def test_a_variable_is_the_same_for_all_examples():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variables = [tf.Variable(1.0), tf.keras.Variable(1.0) if hasattr(tf.keras, "Variable") else 1.0]
    found = []
    tf.function(lambda: found.extend(map(reduction_of, variables)), autograph=False).get_concrete_function()
    assert found == ["same", "same"]


def test_without_a_graph_it_is_unknown():
    assert reduction_of(tf.reduce_mean(tf.ones([4, 2]))) is None


def test_a_number_of_python_is_the_same_for_all_examples():
    assert [reduction_of(0), reduction_of(1.0)] == ["same", "same"]


@pytest.mark.parametrize(
    ("function", "is_linear"),
    [
        (lambda a, b: a + 2.0 * tf.cast(b, tf.float32) / 3.0, True),
        (lambda a, b: tf.add_n([a * tf.sqrt(tf.constant(2.0)), -b, tf.constant(1.0)]), True),
        (lambda a, b: tf.reduce_sum(tf.stack([a, tf.reduce_mean([b, b])])), True),
        (lambda a, b: tf.concat([[a], [b]], axis=0)[0] + tf.debugging.check_numerics(b, ""), True),
        (lambda a, _: a, True),
        (lambda a, b: a * b, False),
        (lambda a, b: a / b, False),
        (lambda a, b: tf.sqrt(a) + b, False),
        (lambda a, b: 2.0 * tf.maximum(a, b), False),
    ],
)
def test_a_root_or_a_product_of_numbers_is_no_sum_of_them(function, is_linear):
    found = []
    number = tf.TensorSpec([])
    tf.function(
        lambda a, b: found.append(is_linear_in(function(a, b), [a, b])), autograph=False
    ).get_concrete_function(number, number)
    assert found == [is_linear]
