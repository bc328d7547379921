"""Check data sets of tensorflow-datasets: prepared ones, ones that cannot be fetched, and damaged ones."""

import os
import shutil
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from commands import script_forked
from tfdist.datasets import from_tfds
from tfdist.datasets.from_tfds import fetch_tfds
from tfdist.datasets.open_data import _DRAWN, open_data
from tfdist.errors import DataError

pytestmark = [
    # tensorflow-datasets and what it imports warn of their own affairs.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def real():
    """Return the folder in which MNIST and CIFAR-10 are prepared, or skip the test."""
    folder = os.environ.get("TFDS_DATA_DIR", "")
    if not folder or not (Path(folder) / "mnist").is_dir() or not (Path(folder) / "cifar10").is_dir():
        pytest.skip("TFDS_DATA_DIR names no folder in which mnist and cifar10 are prepared")
    return Path(folder)


@pytest.fixture
def nowhere(monkeypatch):
    """Make every host unreachable at once: a proxy on a port where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{bound.getsockname()[1]}")
        yield


def test_real_mnist(real, tmp_path):
    data = open_data("mnist", cache_dir=tmp_path)
    assert (data.train_examples, data.test_examples, data.image_shape) == (60_000, 10_000, (28, 28, 1))
    images, labels = data.split("test").arrays()
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert 0.130 < images.mean() / 255 < 0.134
    assert open_data("mnist", cache_dir=tmp_path) == data


def test_a_corrupt_record_is_named(real, tmp_path, nowhere):
    shutil.copytree(real / "mnist", tmp_path / "mnist")
    (path,) = (tmp_path / "mnist").rglob("mnist-train.tfrecord*")
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"\xff\x00\xff")
    with pytest.raises(DataError) as caught:
        open_data("mnist", data_dir=tmp_path, cache_dir=tmp_path / "cache", if_unavailable="digits")
    assert str(path) in str(caught.value)
    number = int(str(caught.value).partition("record ")[2].partition(":")[0])
    assert 10_000 < number < 40_000
    assert "to prepare the data set again" in str(caught.value)


def test_what_cannot_be_fetched_says_in_seconds_what_to_do(tmp_path, nowhere):
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        open_data("mnist", data_dir=tmp_path / "tfds", cache_dir=tmp_path / "cache")
    assert time.monotonic() - start < 60  # it takes minutes to find out by trying
    message = str(caught.value)
    assert message.startswith(
        f"mnist: is not in {tmp_path / 'tfds'}, and the download would fail: 127.0.0.1: "
    )
    for word in (
        "data_dir",
        "TFDS_DATA_DIR",
        "train-images-idx3-ubyte.gz",
        "downloads/manual",
        "if_unavailable",
    ):
        assert word in message


def test_a_substitute_says_so(tmp_path, nowhere, caplog):
    data = open_data("cifar10", data_dir=tmp_path, cache_dir=tmp_path / "cache", if_unavailable="digits")
    assert (data.name, data.substitute_for, data.train_examples) == ("digits", "cifar10", 60_000)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"cifar10: is not in {tmp_path}, and the download would fail: ")
    assert warning.endswith("; 'digits', which tfdist draws, takes its place (if_unavailable)")


def test_a_substitute_has_the_size_that_is_wanted(tmp_path, nowhere, monkeypatch):
    monkeypatch.setitem(_DRAWN, "digits", (_DRAWN["digits"][0], (20, 10)))

    def opened(size):
        options = {"data_dir": tmp_path, "cache_dir": tmp_path / "cache", "if_unavailable": "digits"}
        return open_data("cifar10", **options, image_size=size)

    data, plain = opened((32, 30)), opened(None)
    assert (data.image_shape, plain.image_shape) == ((32, 30, 1), (28, 28, 1))
    images, labels = data.split("train").arrays()
    smaller, same_labels = plain.split("train").arrays()
    assert list(labels) == list(same_labels)
    wanted = tf.image.resize(smaller, (32, 30), antialias=True).numpy().clip(0, 255)
    assert np.abs(images - wanted).max() <= 0.51
    assert data.fingerprint != plain.fingerprint == opened((28, 28)).fingerprint


def test_an_unknown_name(tmp_path, nowhere):
    with pytest.raises(DataError) as caught:
        open_data("fashion_mnis", data_dir=tmp_path, cache_dir=tmp_path / "cache", if_unavailable="digits")
    assert (
        str(caught.value)
        == "data: tensorflow-datasets has no 'fashion_mnis', and there is no folder of this name. "
        "Did you mean 'fashion_mnist'?"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (" ", "Parsing builder name string   failed"),
        ("é", "Parsing builder name string é failed"),
        ("mnist:", "Parsing builder name string mnist: failed"),
        ("mnist:9.9.9", "Dataset mnist cannot be loaded at version 9.9.9, only: 3.0.1"),
        ("mnist/x", "BuilderConfig x not found with version 3.0.1"),
    ],
)
def test_a_name_that_tensorflow_datasets_refuses_is_one_line(tmp_path, name, reason):
    with pytest.raises(DataError) as caught:
        fetch_tfds(name, tmp_path)
    remedy = "Write a name such as mnist, mnist:3.0.1 or cifar10, or a path with a slash"
    assert str(caught.value) == f"data.name: {name!r} cannot be loaded: {reason}. {remedy}"


def test_a_package_that_a_data_set_needs_is_named_in_one_line(tmp_path, monkeypatch):
    def builder(name, data_dir):
        raise ModuleNotFoundError("No module named 'huggingface_hub'")

    monkeypatch.setattr(tfds, "builder", builder)
    with pytest.raises(
        DataError, match=r"^data\.name: 'huggingface:x' cannot be loaded: No module named 'hug.*'\. W"
    ):
        fetch_tfds("huggingface:x", tmp_path)


MAKE = """
import sys
import numpy as np, tensorflow_datasets as tfds

class Own(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    def _info(self):
        feature = {"pictures": tfds.features.Image(shape=(4, 4, 3)), "words": tfds.features.Text()}[sys.argv[2]]
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(
            {"image": feature, "label": tfds.features.ClassLabel(names=["a", "b"])}))
    def _split_generators(self, manager):
        return {name: self._generate_examples(int(count or 5)) for name, _, count in
                (split.partition(":") for split in sys.argv[3:])}
    def _generate_examples(self, count):
        for key in range(count):
            image = np.full((4, 4, 3), key, np.uint8) if sys.argv[2] == "pictures" else "word"
            yield key, {"image": image, "label": key % 2}

Own(data_dir=sys.argv[1]).download_and_prepare()
"""


def make(folder, *arguments):
    script = folder / "own.py"
    script.write_text(MAKE)
    assert script_forked(script, folder, *arguments).returncode == 0


def test_any_prepared_name_is_read(tmp_path, nowhere, forking):
    make(tmp_path, "pictures", "train", "validation")
    data = open_data("own", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert (data.train_examples, data.test_examples, data.classes) == (5, 5, ("a", "b"))
    images, labels = data.split("train").arrays()
    assert sorted(zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True)) == [
        (k, k % 2) for k in range(5)
    ]


def test_every_tenth_image_is_a_test_image_where_there_are_no_others(tmp_path, nowhere, forking, caplog):
    make(tmp_path, "pictures", "train:25")
    with caplog.at_level("INFO", "tfdist"):
        data = open_data("own", data_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert "own: no test images; using every 10th image for tests" in caplog.text
    train, test = (data.split(name).arrays()[0][:, 0, 0, 0].tolist() for name in ("train", "test"))
    in_order = [
        int(example["image"][0, 0, 0]) for example in tfds.load("own", data_dir=tmp_path, split="train")
    ]
    assert (train, test) == (in_order[:9] + in_order[10:19] + in_order[20:], [in_order[9], in_order[19]])


def test_the_record_of_a_held_out_image_is_counted_in_its_file(tmp_path, nowhere, forking):
    make(tmp_path, "pictures", "train:25")
    info = fetch_tfds("own", tmp_path).info
    (path,) = info.splits["train"].filepaths
    parts = {
        of_test: from_tfds._part(str(path), info.features.deserialize_example, of_test)
        for of_test in (True, False)
    }
    assert [parts[True].place(number).rpartition(" ")[2] for number in range(2)] == ["9", "19"]
    assert [parts[False].place(number).rpartition(" ")[2] for number in (0, 8, 9, 17, 18)] == [
        "0",
        "8",
        "10",
        "18",
        "20",
    ]


def test_another_kind_of_data_is_refused_before_a_download(tmp_path, monkeypatch):
    monkeypatch.setattr(from_tfds, "_download", lambda *_: pytest.fail("it has begun"))
    with pytest.raises(
        DataError, match="imdb_reviews: expected an image and a class label, received label: Cl"
    ):
        fetch_tfds("imdb_reviews", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("words", "train", "test"),
            "expected an image and a class label, received image: Text, label: ClassLabel",
        ),
        (("pictures", "test"), "expected a split train, received test"),
        (("pictures", "train"), "own in {folder}: test: has no examples"),  # five make no tenth
    ],
)
def test_what_is_not_for_classification_is_refused(tmp_path, nowhere, forking, arguments, message):
    make(tmp_path, *arguments)
    with pytest.raises(DataError) as caught:
        open_data("own", data_dir=tmp_path, cache_dir=tmp_path / "cache", if_unavailable="shapes")
    assert message.format(folder=tmp_path) in str(caught.value)
