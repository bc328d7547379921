"""Check that idx files are read as MNIST and Fashion-MNIST come, and that a damaged one is named."""

import gzip
import re
import struct

import numpy as np
import pytest

from tfdist.datasets.open_data import open_data
from tfdist.errors import DataError

RANDOM = np.random.default_rng(0)
IMAGES = {"train": RANDOM.integers(0, 256, (7, 6, 5)).astype(np.uint8), "t10k": RANDOM.integers(0, 256, (3, 6, 5)).astype(np.uint8)}  # fmt: skip
LABELS = {"train": np.array([0, 2, 1, 1, 0, 2, 9], np.uint8), "t10k": np.array([9, 0, 1], np.uint8)}


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write(folder, name, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def write_all(folder, form="{}-idx{}-ubyte.gz"):
    for split in ("train", "t10k"):
        write(folder, form.format(f"{split}-images", 3), idx(IMAGES[split]))
        write(folder, form.format(f"{split}-labels", 1), idx(LABELS[split]))
    return folder


def opened(name, tmp_path, **options):
    return open_data(str(name), cache_dir=tmp_path / "cache", **options)


def refused(folder, tmp_path):
    with pytest.raises(DataError) as caught:
        opened(folder, tmp_path)
    return str(caught.value)


def check(data):
    assert (data.image_shape, data.train_examples, data.test_examples) == ((6, 5, 1), 7, 3)
    for split, part in (("train", "train"), ("test", "t10k")):
        images, labels = data.split(split).arrays()
        np.testing.assert_array_equal(images[..., 0], IMAGES[part])
        assert list(labels) == list(LABELS[part])


@pytest.mark.parametrize("form", ["{}-idx{}-ubyte.gz", "{}-idx{}-ubyte", "{}.idx{}-ubyte"])
def test_a_folder_of_idx_files(tmp_path, form):
    data = opened(write_all(tmp_path / "set", form), tmp_path)
    check(data)
    assert data.classes == tuple(map(str, range(10)))


def test_classes_have_the_names_of_labels_txt(tmp_path):
    folder = write_all(tmp_path / "set")
    (folder / "labels.txt").write_text("\n".join("abcdefghij"))
    assert opened(folder, tmp_path).classes == tuple("abcdefghij")
    (folder / "labels.txt").write_text("a\nb")
    assert "expected labels below 2, the number of classes, received 9" in refused(folder, tmp_path)


def test_a_name_is_found_in_the_folder_of_the_data(tmp_path):
    write_all(tmp_path / "sets" / "fashion_mnist")
    data = opened("fashion_mnist", tmp_path, data_dir=tmp_path / "sets")
    check(data)
    assert (data.name, data.classes[0], data.classes[9]) == ("fashion_mnist", "T-shirt/top", "Ankle boot")


def test_a_name_is_a_folder_of_the_current_one(tmp_path, monkeypatch):
    write_all(tmp_path / "imgs")
    monkeypatch.chdir(tmp_path)
    check(opened("imgs", tmp_path, data_dir=tmp_path / "sets"))


def test_images_are_resized(tmp_path):
    data = opened(write_all(tmp_path / "set"), tmp_path, image_size=(12, 10))
    images, _ = data.split("train").arrays()
    assert data.image_shape == (12, 10, 1)
    assert abs(float(images.mean()) - IMAGES["train"].mean()) < 5


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("train-labels-idx1-ubyte.gz", None, "set: has no train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz"),
        ("t10k-images-idx3-ubyte.gz", b"", "t10k-images-idx3-ubyte.gz: expected an idx file of bytes with 3 dimensions, which begins with 00 00 08 03, received an empty file"),
        ("t10k-images-idx3-ubyte.gz", idx(LABELS["t10k"]), "with 3 dimensions, which begins with 00 00 08 03, received 00 00 08 01"),
        ("train-images-idx3-ubyte.gz", idx(IMAGES["train"])[:-1], "train-images-idx3-ubyte.gz: expected 210 bytes after the header, for 7 x 6 x 5, received 209. Copy or download it again"),
        ("train-images-idx3-ubyte.gz", idx(IMAGES["train"]) + b"0", "received more"),
        ("train-labels-idx1-ubyte.gz", idx(LABELS["train"][:6]), "train-labels-idx1-ubyte.gz: expected 7 labels, received 6"),
        ("t10k-images-idx3-ubyte.gz", idx(IMAGES["t10k"][:, :5]), "t10k-images-idx3-ubyte.gz: expected images of 6 x 5 x 1, received 5 x 5 x 1"),
        ("t10k-labels-idx1-ubyte.gz", idx(LABELS["t10k"][:0]), "t10k-labels-idx1-ubyte.gz: has no examples"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path, name, data, problem):
    folder = write_all(tmp_path / "set")
    (folder / name).unlink() if data is None else write(folder, name, data)
    assert problem in refused(folder, tmp_path)


@pytest.mark.parametrize("cut", [1, 30, -9])
def test_a_damaged_gzip_file_is_named(tmp_path, cut):
    folder = write_all(tmp_path / "set")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:cut])
    assert re.search(
        r"train-images-idx3-ubyte\.gz: cannot be read: .*Copy or download it again$",
        refused(folder, tmp_path),
    )
