"""Copy files from and to TensorFlow's file system in memory."""

import pytest
import tensorflow as tf

from tfdist._utils import object_store
from tfdist._utils.object_store import (
    check_store,
    download,
    list_files,
    list_names,
    read_file,
    remove_file,
    remove_tree,
    upload,
    write_file,
)
from tfdist.errors import ConfigError, StorageError


@pytest.fixture
def store(tmp_path):
    """Return an address that no other test has used."""
    return f"ram://bucket{tmp_path}"


def test_files_come_back_as_they_went(store, tmp_path):
    files = {"a": tmp_path / "a", "sub/deep/b": tmp_path / "b", "sub/empty": tmp_path / "empty"}
    for name, path in files.items():
        path.write_bytes(b"" if name == "sub/empty" else name.encode() * 1000)
    upload(files, store)
    listed = list_files(store)
    assert {name: file.size for name, file in listed.items()} == {
        "a": 1000,
        "sub/deep/b": 10000,
        "sub/empty": 0,
    }
    download(store, tmp_path / "copy", listed)
    for name, path in files.items():
        assert (tmp_path / "copy" / name).read_bytes() == path.read_bytes()


def test_one_file_has_no_relative_name(store, tmp_path):
    write_file(f"{store}/x.npz", b"123")
    assert {name: file.size for name, file in list_files(f"{store}/x.npz").items()} == {"": 3}
    download(f"{store}/x.npz", tmp_path / "x.npz", [""])
    assert (tmp_path / "x.npz").read_bytes() == b"123"


def test_what_is_missing_is_none_or_an_error_of_one_line(store, tmp_path):
    assert read_file(f"{store}/no") is None
    assert list_names(f"{store}/no") == []
    remove_file(f"{store}/no")
    remove_tree(f"{store}/no")
    with pytest.raises(StorageError, match=r"/no: does not exist. Check the address$"):
        list_files(f"{store}/no")
    with pytest.raises(StorageError, match=r"/no: cannot be copied to .*/no: "):
        download(store, tmp_path, ["no"])


def test_a_removed_folder_is_gone(store):
    write_file(f"{store}/7/a/b", b"x")
    write_file(f"{store}/8", b"x")
    remove_tree(f"{store}/7")
    assert list_names(store) == ["8"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_a_name_does_not_lead_out_of_the_folder(store, tmp_path, name):
    with pytest.raises(StorageError, match="has a name that leads out of its folder"):
        download(store, tmp_path / "copy", [name])


def test_a_scheme_without_a_file_system_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"s3://bucket/x: TensorFlow 2.* has no file system for s3://"):
        check_store("s3://bucket/x")
    for version, remedy in (
        ("2.16.1", "Install the tensorflow-io of this"),
        ("2.21.0", "Mount the bucket, for"),
    ):
        monkeypatch.setattr(tf, "__version__", version)
        with pytest.raises(ConfigError, match=remedy):
            check_store("s3://bucket/x")


def test_the_package_that_adds_file_systems_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "own_file_systems.py").write_text("raise ImportError('it was loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(object_store, "_PLUGIN", "own_file_systems")
    with pytest.raises(ConfigError, match="own_file_systems cannot be imported: it was loaded"):
        check_store("s3://bucket/x")


def test_a_store_that_is_not_reachable_is_named_within_seconds(monkeypatch):
    monkeypatch.setattr(object_store, "why_unreachable", lambda host: f"{host}: no route")
    with pytest.raises(
        StorageError, match=r"^gs://bucket/x: is unreachable: storage.googleapis.com: no route. Check"
    ):
        check_store("gs://bucket/x")
