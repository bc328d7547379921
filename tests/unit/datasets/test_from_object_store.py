"""Read data sets from an object store, which is TensorFlow's file system in memory."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist._utils import object_store
from tfdist._utils.object_store import upload, write_file
from tfdist.datasets import from_object_store
from tfdist.datasets.open_data import open_data
from tfdist.errors import DataError, Unavailable


@pytest.fixture
def store(tmp_path):
    """Return an address that no other test has used."""
    return f"ram://bucket{tmp_path}"


def archive(path, seed=0):
    random = np.random.default_rng(seed)
    arrays = {f"x_{split}": random.integers(0, 256, (20, 8, 8), np.uint8) for split in ("train", "test")}
    np.savez(path, **arrays, y_train=np.arange(20) % 3, y_test=np.arange(20) % 3)
    return path


def test_an_archive_and_a_folder_by_class_are_like_those_of_this_machine(store, tmp_path):
    local = archive(tmp_path / "photos.npz")
    upload({"photos.npz": local}, store)
    cache = tmp_path / "cache"
    data = open_data(f"{store}/photos.npz", cache_dir=cache)
    assert data.name == f"{store}/photos.npz"
    assert data.fingerprint == open_data(str(local), cache_dir=cache).fingerprint
    for label in ("cat", "dog"):
        for number in range(12):
            image = tf.io.encode_png(np.full((4, 4, 1), number, np.uint8)).numpy()
            write_file(f"{store}/by_class/{label}/{number}.png", image)
    data = open_data(f"{store}/by_class/", cache_dir=cache)
    assert (data.classes, data.train_examples, data.test_examples) == (("cat", "dog"), 22, 2)


def test_files_are_copied_once_and_again_when_they_change(store, tmp_path, monkeypatch):
    copied = []
    download = from_object_store.download
    monkeypatch.setattr(
        from_object_store, "download", lambda *words: copied.append(words) or download(*words)
    )
    upload({"photos.npz": archive(tmp_path / "a.npz")}, store)
    first = open_data(f"{store}/photos.npz", cache_dir=tmp_path / "cache")
    assert open_data(f"{store}/photos.npz", cache_dir=tmp_path / "cache") == first
    open_data(f"{store}/photos.npz", cache_dir=tmp_path / "cache", image_size=(4, 4))
    assert len(copied) == 1
    write_file(f"{store}/labels.txt", b"another file beside it does not matter")
    tf.io.gfile.remove(f"{store}/photos.npz")
    np.savez(tmp_path / "b.npz", **np.load(archive(tmp_path / "a.npz", seed=1)), classes=["a", "b", "c"])
    upload({"photos.npz": tmp_path / "b.npz"}, store)
    assert open_data(f"{store}/photos.npz", cache_dir=tmp_path / "cache").classes == ("a", "b", "c")
    assert len(copied) == 2


def test_a_copy_that_fails_is_one_line_and_leaves_nothing(store, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"^ram://.*/none: does not exist. Check the address$"):
        open_data(f"{store}/none", cache_dir=tmp_path)
    upload({"photos.npz": archive(tmp_path / "a.npz")}, store)
    listing = from_object_store.list_address(f"{store}/photos.npz")
    tf.io.gfile.remove(f"{store}/photos.npz")
    with pytest.raises(DataError, match=r"photos.npz: cannot be copied to "):
        from_object_store.copy_to_cache(f"{store}/photos.npz", listing, tmp_path / "cache")
    names = [path.name for path in (tmp_path / "cache" / "from-address").iterdir()]
    assert len(names) == 1
    assert names[0].endswith(".lock")


def test_an_unreachable_store_may_have_a_substitute(tmp_path, monkeypatch, cache):
    monkeypatch.setattr(object_store, "why_unreachable", lambda host: f"{host}: no route")
    with pytest.raises(
        Unavailable, match=r"gs://bucket/photos: is unreachable: storage.googleapis.com: no route"
    ):
        open_data("gs://bucket/photos", cache_dir=tmp_path)
    assert (
        open_data("gs://bucket/photos", cache_dir=cache, if_unavailable="digits").substitute_for
        == "gs://bucket/photos"
    )
