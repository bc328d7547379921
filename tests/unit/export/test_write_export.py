"""What is exported answers as the trained model does, in a process of its own, or it is not there at all."""

import importlib
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from again import again
from tfdist.errors import ConfigError, TfdistError
from tfdist.export.export_folder import find_export
from tfdist.export.load_export import load
from tfdist.export.write_export import export, try_formats
from tfdist.models.layers import Standardize

keras = tf.keras
SHAPE = (8, 6, 3)
METADATA = {"classes": ["a", "b", "c"], "data": "drawn"}


def small_model(*more):
    keras.utils.set_random_seed(0)
    layers = [
        Standardize(),
        keras.layers.Conv2D(4, 3, activation="relu"),  # what fails on an empty batch when it is fused
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.Flatten(),
        *more,
        keras.layers.Dense(3, kernel_initializer="random_normal"),
    ]
    model = keras.Sequential([keras.Input(SHAPE), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def drawn(count=5):
    return np.random.default_rng(1).integers(0, 256, size=(count, *SHAPE)).astype(np.uint8)


def encoded(images):
    return tf.constant([tf.io.encode_png(image).numpy() for image in images], tf.string, shape=[len(images)])


@pytest.fixture(scope="module")
def model():
    model = small_model()
    images = drawn(64)
    model.fit(images.astype("float32"), np.arange(64) % 3, epochs=1, verbose=0)  # moving averages that matter
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    exports = tmp_path_factory.mktemp("run") / "export"
    older = exports / "7"
    (older / "variables").mkdir(parents=True)
    (older / "saved_model.pb").write_text("what an earlier try left under this name")
    (older / "left").touch()
    (exports / "latest").symlink_to("5")
    return export(model, exports, step=7, images=drawn(), metadata=METADATA)


@pytest.fixture(scope="module")
def signatures(folder):
    loaded = tf.saved_model.load(str(folder))
    yield loaded.signatures
    del loaded  # which holds the variables


def test_it_lies_where_a_server_looks_for_versions(folder):
    assert (folder.name, str((folder.parent / "latest").readlink())) == ("7", "7")
    assert sorted(os.listdir(folder.parent)) == ["7", "latest"]
    told = json.loads((folder / "metadata.json").read_text())
    assert told == {
        "image_shape": list(SHAPE),
        "step": 7,
        "formats": ["saved_model"],
        "outputs": "logits",
        **METADATA,
    }
    assert not (folder / "left").exists()  # of what had the name before


@pytest.mark.parametrize("count", [0, 1, 5])
def test_pixels_floats_and_encoded_images_get_the_models_scores(model, signatures, count):
    images, keys = drawn()[:count], np.array([2**62, -1, 0, 7, 7][:count], np.int64)
    wanted = tf.nn.softmax(model(drawn().astype("float32"), training=False)).numpy()[:count]
    ways = {
        "serving_default": tf.constant(images),
        "serving_float": tf.constant(images.astype("float32")),
        "serving_bytes": encoded(images),
    }
    for name, image in ways.items():
        answer = {part: value.numpy() for part, value in signatures[name](image=image, key=keys).items()}
        assert sorted(answer) == ["key", "label", "scores"]
        assert answer["key"].tolist() == keys.tolist()
        assert answer["scores"].shape == (count, 3)
        np.testing.assert_allclose(answer["scores"], wanted, atol=1e-6)
        assert answer["label"].tolist() == wanted.argmax(-1).tolist()


def test_encoded_images_in_grey_are_spread_over_the_colours(signatures):
    grey = drawn(2)[..., :1]
    key = tf.constant([1, 2], tf.int64)
    as_bytes = signatures["serving_bytes"](image=encoded(grey), key=key)["scores"]
    as_pixels = signatures["serving_default"](image=tf.constant(np.repeat(grey, 3, axis=-1)), key=key)[
        "scores"
    ]
    np.testing.assert_allclose(as_bytes, as_pixels, atol=1e-6)


def test_a_jpeg_is_taken_and_another_size_is_refused(signatures):
    key = tf.constant([1], tf.int64)
    jpeg = tf.io.encode_jpeg(drawn(1)[0]).numpy()
    assert signatures["serving_bytes"](image=tf.constant([jpeg]), key=key)["scores"].shape == (1, 3)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"\[9,6,3\] is not compatible with expected shape \[8,6,3\]"
    ):
        signatures["serving_bytes"](image=encoded(np.zeros((1, 9, 6, 3), np.uint8)), key=key)
    with pytest.raises(tf.errors.InvalidArgumentError):
        signatures["serving_bytes"](image=tf.constant([b"no image"]), key=key)


@pytest.mark.slow
def test_the_other_formats_get_the_models_scores(model, tmp_path):
    images, formats = drawn(), ("keras", "tflite")
    folder = export(model, tmp_path, step=7, images=images, metadata=METADATA, formats=formats)
    assert json.loads((folder / "metadata.json").read_text())["formats"] == ["saved_model", *formats]
    assert zipfile.is_zipfile(folder / "model.keras")
    wanted = model(images.astype("float32"), training=False).numpy()
    loaded = keras.models.load_model(folder / "model.keras", compile=False)
    np.testing.assert_allclose(loaded(images.astype("float32"), training=False), wanted, atol=1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *arguments, **options: None)  # of the interpreter's new home
        run = tf.lite.Interpreter(str(folder / "model.tflite")).get_signature_runner("serving_default")
    for count in (5, 1):
        keys = np.arange(count, dtype=np.int64) + 2**40
        answer = run(image=images[:count], key=keys)
        np.testing.assert_allclose(answer["scores"], tf.nn.softmax(wanted[:count]), atol=1e-6)
        assert answer["key"].tolist() == keys.tolist()


def test_the_scores_of_a_softmax_are_its_outputs(tmp_path):
    model = small_model(keras.layers.Dense(3), keras.layers.Softmax())
    model = keras.Model(model.inputs[0], model.layers[-2].output)  # without the last layer
    images = drawn()
    wanted = model(images.astype("float32"), training=False).numpy()
    options = {"step": 1, "images": images, "metadata": METADATA, "outputs": "probabilities"}
    folder = export(model, tmp_path, formats=("keras",), **options)
    assert wanted.sum(axis=1) == pytest.approx(1)
    for place in (folder, folder / "model.keras"):
        np.testing.assert_allclose(load(find_export(place))(images), wanted, atol=1e-6)


class Clock(keras.layers.Layer):
    def call(self, x):
        return x * tf.cast(tf.timestamp() % 1000.0, x.dtype)


def test_a_run_folder_may_have_glob_characters_in_its_name(model, tmp_path):
    images = drawn()
    export(model, tmp_path / "run [1]*", step=7, images=images, metadata=METADATA, formats=["keras"])
    for place in (tmp_path / "run [1]*", tmp_path / "run [1]*" / "7" / "model.keras"):
        scores = load(find_export(place))(images)
        assert np.allclose(scores, tf.nn.softmax(model(images)), atol=1e-5)


def test_a_model_that_answers_otherwise_is_no_export(tmp_path):
    with pytest.raises(
        TfdistError, match=r"serving_\w+: a new process computes other scores than the trained model"
    ):
        export(small_model(Clock()), tmp_path, step=1, images=drawn(), metadata=METADATA)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_what_one_format_cannot_take_leaves_no_other_either(tmp_path, capfd):
    class Cholesky(keras.layers.Layer):  # which TensorFlow Lite has not, and nobody can import
        def call(self, x):
            return x + tf.reduce_sum(tf.linalg.cholesky(tf.eye(2) * (1 + tf.reduce_mean(x) ** 2)))

    model = small_model(Cholesky())
    lacking = r"export\.formats: tflite: TensorFlow Lite does not support this model: it has no: Cholesky\. Leave out tflite"
    with pytest.raises(ConfigError, match=lacking):
        export(model, tmp_path, step=1, images=drawn(), metadata=METADATA, formats=("tflite",))
    assert "Cholesky" not in capfd.readouterr().err  # of which the converter writes pages
    with pytest.raises(ConfigError, match=lacking):
        try_formats(model, SHAPE, ("tflite",))
    with pytest.raises(TfdistError, match=r"model\.keras: a new process could not load the export"):
        try_formats(model, SHAPE, ("keras",))
    with pytest.raises(TfdistError, match=r"model\.keras: a new process could not load the export"):
        export(model, tmp_path, step=1, images=drawn(), metadata=METADATA, formats=("keras",))
    assert os.listdir(tmp_path) == []


_ON_A_FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
import numpy as np
import tensorflow as tf
from tfdist.errors import StorageError
from tfdist.export.export_folder import find_export
from tfdist.export.load_export import load
from tfdist.export.write_export import export, try_formats

place, whole, formats = Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:])
model = tf.keras.Sequential([tf.keras.Input((8, 8, 1)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(9000)])
for options in (f"size={whole}k", "remount,ro"):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        export(model, place / "export", step=1, images=np.zeros((2, 8, 8, 1), np.uint8), metadata={}, formats=formats)
    except StorageError as error:
        print(f"{error.exit_code} {error}", os.listdir(place / "export"))
"""


def namespace():
    """Return the words that start a command in a mount namespace of its own, or None if it may not mount."""
    words = ["unshare", "--user", "--mount", "--map-root-user"]
    can = (
        subprocess.run([*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0
    )
    return words if can else None


@pytest.mark.parametrize(("kilobytes", "formats"), [(1000, ()), again(4000, ("keras",))])
def test_a_disk_that_refuses_is_said_and_nothing_is_left(tmp_path, kilobytes, formats):
    if (words := namespace()) is None:
        pytest.skip("this system lets nobody mount a small disk without privileges")
    command = [*words, sys.executable, "-c", _ON_A_FULL_DISK, str(tmp_path), str(kilobytes), *formats]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert run.returncode == 0, run.stderr
    full, readonly = run.stdout.splitlines()
    assert full.startswith(f"2 {tmp_path}/export/")
    assert "cannot be written: No space left on device" in full
    assert "cannot be written: Read-only file system" in readonly
    assert full.endswith("[]")
    assert readonly.endswith("[]")


def test_a_function_that_a_module_of_the_users_own_registers_is_imported(tmp_path, monkeypatch):
    (tmp_path / "own_functions.py").write_text(
        "import tensorflow as tf\n"
        "@tf.keras.utils.register_keras_serializable(package='own')\n"
        "def doubled(x):\n"
        "    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, *sys.path))))
    doubled = importlib.import_module("own_functions").doubled
    model = small_model(keras.layers.Dense(4, doubled))
    with pytest.raises(TfdistError, match="a new process could not load the export"):
        try_formats(model, SHAPE, ["keras"])
    try_formats(model, SHAPE, ["keras"], modules=["own_functions"])
    options = {"images": drawn(), "metadata": {**METADATA, "model": "own_functions:build"}}
    folder = export(model, tmp_path / "x", step=1, formats=["keras"], modules=["own_functions"], **options)
    # As in the process of another command.
    monkeypatch.delitem(keras.utils.get_custom_objects(), "own>doubled")
    with pytest.raises(
        ConfigError, match=rf"own_functions:build, predict with the SavedModel: --model {folder}$"
    ):
        load(find_export(folder / "model.keras"))
    assert load(find_export(folder))(drawn()).shape == (5, 3)
