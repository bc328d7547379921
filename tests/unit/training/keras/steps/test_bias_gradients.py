"""Check that gradients of biases are computed apart, on Keras's own layers, and are what TensorFlow gives."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.keras.steps.bias_gradients import biases_apart
from tfdist.training.model_session import Session

keras = tf.keras
RANDOM = np.random.default_rng(0)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def model_of(*layers):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((9, 8, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(4)])


def gradients_of(model, images, change):
    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True)))
        return change(tape.gradient(loss, variables))

    variables = [each if isinstance(each, tf.Variable) else each.value for each in model.trainable_variables]
    found = gradients()
    return found, gradients.get_concrete_function().graph


def kinds_of_sums(graph):
    """Return the ranks of the tensors that the graph's outputs sum up for biases."""
    used = {each.op for each in graph.outputs}
    reached = set(used)
    while used:
        used = {each.op for operation in used for each in operation.inputs} - reached
        reached |= used
    return sorted(each.inputs[0].shape.rank for each in reached if each.type == "BiasAddGrad")


layers = keras.layers


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="on GPUs nothing is changed")
@pytest.mark.parametrize(
    ("made", "before", "after"),
    [
        (
            lambda: [layers.Conv2D(5, 3, activation="relu"), layers.Conv2D(6, 3, strides=2)],
            [2, 4, 4],
            [2, 2, 2],
        ),
        (lambda: [layers.Conv2D(5, 3, padding="same", use_bias=False)], [2], [2]),
        (lambda: [layers.Conv2D(5, (1, 3), dilation_rate=2, padding="same")], None, None),
    ],
    ids=["convolutions", "no biases", "dilated"],
)
def test_are_those_of_tensorflow(made, before, after):
    images = tf.constant(RANDOM.normal(0, 1, (4, 9, 8, 3)), tf.float32)
    model = model_of(*made())
    stock, graph = gradients_of(model, images, lambda gradients: gradients)
    ours, changed = gradients_of(model, images, biases_apart)
    if before is not None:
        assert kinds_of_sums(graph) == before
        assert kinds_of_sums(changed) == after
    for found, expected in zip(ours, stock, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_nothing_is_changed_outside_of_graphs():
    gradients = [tf.constant(1.0), None]
    assert biases_apart(gradients) is gradients


def test_gradients_of_rows_and_none_are_left_alone():
    @tf.function(autograph=False)
    def same():
        rows = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 1]), tf.constant([5, 3]))
        found = biases_apart([rows, None])
        assert found[0] is rows
        assert found[1] is None
        return tf.constant(0)

    same()


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="on GPUs nothing is changed")
def test_a_training_step_takes_them_apart():
    model = model_of(layers.Conv2D(5, 3, activation="relu"), layers.Conv2D(6, 3))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((tf.ones([4, 9, 8, 3]), tf.ones([4, 4])))
    session = Session(model, tf.distribute.get_strategy(), data)
    training = session.training()
    assert [ran for ran, _ in training.runner.epoch(1, lambda: 1, training.step.begin())] == [1]
    graphs = [each.graph.as_graph_def() for each in training.runner._execute._list_all_concrete_functions()]
    apart = []
    for function in [each for graph in graphs for each in graph.library.function]:
        kinds = {node.name: node.op for node in function.node_def}
        sums = [node.input[0].partition(":")[0] for node in function.node_def if node.op == "BiasAddGrad"]
        apart.append([kinds.get(name) for name in sums].count("Reshape"))
    assert max(apart) >= 2  # what the dense layer's comes from may be one, too
