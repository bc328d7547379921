"""Check the models: their layers against TensorFlow's own ops, their numbers, and what can go wrong with a user's."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from again import again
from tfdist.errors import ConfigError
from tfdist.models.layers import (
    BatchNormalization,
    CenterCrop,
    LocalResponseNormalization,
    Rescale,
    Standardize,
)
from tfdist.models.model_by_name import build

keras = tf.keras
SHAPES = {
    "mnist_cnn": (28, 28, 1),
    "cifar10_cnn": (32, 32, 3),
    "resnet": (32, 32, 3),
}
RANDOM = np.random.default_rng(0)

pytestmark = [
    # Keras warns of what Keras does: of NumPy's types, and when it saves a model with TensorFlow.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(params=["float32", "float64"])
def number_type(request):
    before = keras.backend.floatx()
    keras.backend.set_floatx(request.param)
    keras.mixed_precision.set_global_policy(request.param)
    yield request.param
    keras.backend.set_floatx(before)
    keras.mixed_precision.set_global_policy(before)


@pytest.fixture
def half():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def pixels(count, shape):
    return RANDOM.integers(0, 256, (count, *shape)).astype(np.uint8)


@pytest.mark.parametrize("name", SHAPES)
def test_gives_the_same_logits_after_saving_and_loading(name, number_type, tmp_path):
    model = build(name, SHAPES[name], 10)
    images = pixels(4, SHAPES[name])
    logits = model(images, training=False)
    assert (logits.shape, logits.dtype.name) == ((4, 10), number_type)
    assert all(
        variable.dtype in (number_type, tf.as_dtype(number_type)) for variable in model.trainable_variables
    )
    np.testing.assert_allclose(
        model(images.astype(number_type), training=False), logits, rtol=1e-5, atol=1e-6
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images, training=False), logits)


LOADING = """
import os, sys
import numpy as np
import tensorflow as tf
for folder in sys.argv[1:]:
    loaded = tf.saved_model.load(os.path.join(folder, "export"))
    images = np.load(os.path.join(folder, "images.npy"))
    np.save(os.path.join(folder, "logits.npy"), loaded.logits(images).numpy())
sys.exit("tfdist" in sys.modules)
"""


def saved(model, shape, folder):
    """Save a model as a function of images of 8 bits."""
    module = tf.Module()
    module.model = model
    module.logits = tf.function(
        lambda image: model(image, training=False), input_signature=[tf.TensorSpec([None, *shape], tf.uint8)]
    )
    tf.saved_model.save(module, str(folder / "export"))


def test_all_export_with_their_preprocessing_inside(tmp_path):
    expected = {}
    for name, shape in SHAPES.items():
        model, images, folder = build(name, shape, 10), pixels(3, shape), tmp_path / name
        saved(model, shape, folder)
        np.save(folder / "images.npy", images)
        expected[folder] = model(images, training=False)
    command = [sys.executable, "-c", LOADING, *map(str, expected)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    for folder, logits in expected.items():
        np.testing.assert_allclose(np.load(folder / "logits.npy"), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name == "resnet" else again(name) for name in SHAPES])
def test_learns_a_batch_by_heart(name):
    keras.utils.set_random_seed(1)
    model = build(name, SHAPES[name], 4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    images, labels = pixels(16, SHAPES[name]), np.arange(16) % 4
    first = model.evaluate(images, labels, verbose=0)[0]
    epochs = 8 if name == "resnet" else 30  # without dropout, it learns at once
    history = model.fit(images, labels, batch_size=16, epochs=epochs, verbose=0).history
    assert history["accuracy"][-1] > 0.9
    assert history["loss"][-1] < first / 2


def test_sizes_are_those_of_the_tutorials():
    assert build("mnist_cnn", (28, 28, 1), 10).count_params() == 3_274_634
    assert build("cifar10_cnn", (32, 32, 3), 10).count_params() == 1_068_298
    # He and others give 0.27 million for 20 layers.
    assert 0.26e6 < build("resnet", (32, 32, 3), 10).count_params() < 0.28e6


def test_the_tutorials_initial_weights_and_decay():
    keras.utils.set_random_seed(1)
    model = build("cifar10_cnn", (32, 32, 3), 10)
    kernels = [variable for variable in model.trainable_variables if len(variable.shape) > 1]
    # A normal distribution cut at two deviations has 0.88 of its deviation.
    deviations = [float(tf.math.reduce_std(kernel)) / 0.8796 for kernel in kernels]
    np.testing.assert_allclose(deviations, [0.05, 0.05, 0.04, 0.04, 1 / 192], rtol=0.03)
    biases = [float(variable[0]) for variable in model.trainable_variables if len(variable.shape) == 1]
    np.testing.assert_allclose(biases, [0, 0.1, 0.1, 0.1, 0])
    half_squares = sum(float(tf.nn.l2_loss(kernel)) for kernel in kernels[2:4])
    assert float(sum(model.losses)) == pytest.approx(0.004 * half_squares, rel=1e-5)
    assert not build("cifar10_cnn", (32, 32, 3), 10, weight_decay=0).losses


def test_crops_for_training_go_in_as_they_are():
    model = build("cifar10_cnn", (32, 32, 3), 10)
    images = pixels(5, (32, 32, 3))
    whole, middle = model(images, training=False), model(images[:, 4:28, 4:28], training=False)
    np.testing.assert_allclose(middle, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beta", [0.5, 0.75, 0.6])
def test_normalization_is_tensorflows_values_and_gradients(beta):
    x = tf.constant(RANDOM.normal(0, 30, (8, 6, 5, 64)), tf.float32)
    upstream = tf.constant(RANDOM.normal(0, 1, x.shape), tf.float32)
    results = []
    for fused in (True, False):
        layer = LocalResponseNormalization(4, bias=1.0, alpha=0.001 / 9, beta=beta, fused=fused)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        results.append((y, tape.gradient(y, x, upstream)))
    for ours, stock in zip(*results, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=3e-6)
    assert float(tf.reduce_max(tf.abs(results[0][0] - x))) > 1  # it does something


def test_the_gradient_of_normalization_is_that_of_its_values():
    layer = LocalResponseNormalization(2, bias=1.5, alpha=0.3, beta=0.75, dtype="float64")
    x = tf.constant(RANDOM.normal(0, 2, (2, 2, 2, 7)), tf.float64)
    (found,), (expected,) = tf.test.compute_gradient(layer, [x])
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize(("channels", "radius"), [(1, 2), (3, 1), (5, 9), (7, 0), (7, 3), (65, 4), (96, 95)])
def test_normalization_at_the_edge_channels(channels, radius):
    x = RANDOM.normal(0, 3, (2, 3, 1, channels))
    upstream = RANDOM.normal(0, 1, x.shape)

    def found(number_type, **options):
        layer = LocalResponseNormalization(
            radius, bias=1.0, alpha=0.5, beta=0.75, dtype=number_type, **options
        )
        images = tf.constant(x, number_type)
        with tf.GradientTape() as tape:
            tape.watch(images)
            y = layer(images)
        return y, tape.gradient(y, images, tf.constant(upstream, number_type))

    exact = found("float64")  # which TensorFlow's op has not
    for each in (found("float32"), found("float32", fused=False)):
        for ours, right in zip(each, exact, strict=True):
            np.testing.assert_allclose(ours, right, rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize("number_type", ["float16", "bfloat16"])
def test_normalization_of_16_bits_is_computed_in_32(number_type):
    x = tf.constant(RANDOM.normal(0, 300, (2, 3, 4, 9)), number_type)  # whose squares are no float16
    exact = LocalResponseNormalization(2, alpha=0.1, beta=0.75)(tf.cast(x, tf.float32))
    found = LocalResponseNormalization(2, alpha=0.1, beta=0.75, dtype=number_type)(x)
    assert found.dtype == number_type
    np.testing.assert_array_equal(found, tf.cast(exact, number_type))


@pytest.mark.parametrize("shape", [(6, 5, 4, 7), (1, 1, 1, 3)])
def test_batch_normalization_is_kerass_in_values_gradients_and_averages(shape):
    x = tf.constant(RANDOM.normal(3, 5, shape), tf.float32)
    upstream = tf.constant(RANDOM.normal(0, 1, shape), tf.float32)
    results = []
    for kind in (BatchNormalization, keras.layers.BatchNormalization):
        layer = kind(momentum=0.7, epsilon=1e-2)
        layer.build(shape)
        layer.set_weights([np.linspace(start, 2, shape[-1]) for start in (0.5, -1, -2, 1)])
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
            found = tape.gradient(y, [x, *layer.trainable_variables], upstream)
        layer.trainable = False
        frozen = layer(x, training=True)
        results.append([y, *found, *layer.get_weights(), layer(x, training=False), frozen])
    for ours, stock in zip(*results, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=1e-5)


@pytest.mark.skipif(getattr(keras, "__version__", "2") < "3", reason="Keras 2 takes the operation by itself")
def test_batch_normalization_is_one_operation_where_it_can_be():
    def names(layer, shape, dtype="float32"):
        graph = tf.function(lambda x: layer(x, training=True)).get_concrete_function(
            tf.TensorSpec(shape, dtype)
        )
        return {each.type for each in graph.graph.get_operations()}

    assert "FusedBatchNormV3" in names(BatchNormalization(), (2, 3, 4, 5))
    assert "FusedBatchNormV3" in names(build("resnet", (8, 8, 1), 2), (2, 8, 8, 1))
    assert "FusedBatchNormV3" not in names(BatchNormalization(), (2, 5))
    assert "FusedBatchNormV3" not in names(BatchNormalization(scale=False), (2, 3, 4, 5))
    assert "FusedBatchNormV3" not in names(BatchNormalization(axis=1), (2, 3, 4, 5))
    assert "FusedBatchNormV3" not in names(BatchNormalization(dtype="float64"), (2, 3, 4, 5), "float64")


@pytest.mark.parametrize(
    "layer",
    [
        CenterCrop(3, 4),
        Rescale(0.5),
        Standardize(),
        LocalResponseNormalization(3, alpha=0.1, fused=False),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_can_be_made_again(layer):
    x = tf.constant(RANDOM.normal(0, 3, (2, 6, 7, 5)), tf.float32)
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(again(x), layer(x))
    assert tuple(layer.compute_output_shape(x.shape)) == tuple(layer(x).shape)


def test_preprocessing_is_exact_in_16_bits(half):
    images = pixels(3, (32, 32, 3))
    expected = tf.image.per_image_standardization(tf.constant(images, tf.float32))
    np.testing.assert_allclose(Standardize()(images), expected, rtol=1e-6)
    model = build("cifar10_cnn", (32, 32, 3), 10)
    assert model(images).dtype == tf.float32


def test_a_users_own_model(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "import tensorflow as tf\n"
        "def build(image_shape, classes, *, width=3):\n"
        "    layers = tf.keras.layers\n"
        "    return tf.keras.Sequential([tf.keras.Input(image_shape), layers.Flatten(), layers.Dense(width),\n"
        "                                layers.Dense(classes)])\n"
        "def no_model(image_shape, classes):\n"
        "    return 'a string'\n"
        "number = 7\n"
    )
    (tmp_path / "broken_models.py").write_text("import no_such_module_of_mine\n")
    (tmp_path / "wrong_models.py").write_text("def build(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert build("own_models:build", (4, 4, 1), 5).count_params() == 17 * 3 + 4 * 5
    assert build("own_models:build", (4, 4, 1), 5, width=2).count_params() == 17 * 2 + 3 * 5
    for name, options, message in (
        ("own_models:no_model", {}, "expected a Keras model, received 'a string'"),
        ("own_models:number", {}, "expected a function, received 7"),
        ("own_models:biuld", {}, "own_models has no 'biuld'. Did you mean 'build'?"),
        ("own_models:build", {"widht": 2}, "unexpected keyword argument 'widht'. Its options: width"),
        ("broken_models:build", {}, "cannot be imported: No module named 'no_such_module_of_mine'"),
        ("wrong_models:build", {}, "cannot be imported: invalid syntax"),
        ("not_there:build", {}, "cannot be imported: No module named 'not_there'"),
        (":build", {}, "cannot be imported: Empty module name"),
    ):
        with pytest.raises(ConfigError) as caught:
            build(name, (4, 4, 1), 5, **options)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist_cn", {}, "model: there is no 'mnist_cn'. Did you mean 'mnist_cnn'?"),
        ("transformer", {}, "Known: mnist_cnn, cifar10_cnn, resnet, or your own as my_pkg.my_module:build"),
        (
            "fast_resnet",
            {},
            "model: tfdist no longer ships 'fast_resnet'. Write examples.fast_resnet:build",
        ),
        ("mnist_cnn", {"drop": 0.1}, "Its options: dropout"),
        ("cifar10_cnn", {"crop": 40}, "model cifar10_cnn: crop: expected at most 32, received 40"),
        ("resnet", {"depth": 18}, "model resnet: depth: expected 8, 14, 20"),
    ],
)
def test_refuses_what_makes_no_sense(name, options, message):
    with pytest.raises(ConfigError) as caught:
        build(name, (32, 32, 3), 10, **options)
    assert message in str(caught.value)


def test_keras_2_builds_the_same_models():
    if tf.keras.Model.__module__.startswith("tf_keras") or not hasattr(keras, "version"):
        pytest.skip("this is Keras 2")
    pytest.importorskip("tf_keras")
    code = (
        "import numpy as np; from tfdist.models import build; import tensorflow as tf; "
        "assert tf.keras.Model.__module__.startswith('tf_keras'); "
        f"[print(name, build(name, shape, 10).count_params()) for name, shape in {SHAPES}.items()]"
    )
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    expected = "".join(f"{name} {build(name, shape, 10).count_params()}\n" for name, shape in SHAPES.items())
    assert done.stdout == expected
