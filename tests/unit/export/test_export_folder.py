"""Where exports lie and how they are found: all of it without TensorFlow."""

import json
import os
from pathlib import Path

import pytest

from tfdist.errors import ConfigError, DataError, StorageError
from tfdist.export.export_folder import find_export, set_latest, write_metadata


def exported(folder, **about):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    write_metadata(folder, image_shape=(8, 6, 3), about={"classes": ["a", "b"], **about})
    return folder


def test_a_run_its_exports_and_one_export_lead_to_the_same_model(tmp_path):
    exports = tmp_path / "run" / "export"
    folder = exported(exports / "40", step=40)
    exported(exports / "20", step=20)
    set_latest(exports, "40")
    for place in (tmp_path / "run", exports, exports / "latest", folder):
        found = find_export(place)
        assert (found.path, found.format) == (folder, "saved_model")
        assert (found.image_shape, found.classes, found.about["step"]) == ((8, 6, 3), ("a", "b"), 40)
    (folder / "model.tflite").touch()
    assert find_export(folder / "model.tflite").format == "tflite"


def test_latest_is_a_link_within_the_folder_and_is_moved_on_in_one_step(tmp_path):
    exported(tmp_path / "1")
    exported(tmp_path / "2")
    for name in ("1", "2"):
        set_latest(tmp_path, name)
        assert (tmp_path / "latest").readlink() == Path(name)  # relative: the folder may be moved
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "latest"]
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert find_export(moved).path == moved / "2"


def test_where_there_are_no_links_a_file_names_the_latest(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")  # as FAT does

    exported(tmp_path / "1")
    exported(tmp_path / "2")
    set_latest(tmp_path, "1")
    monkeypatch.setattr(os, "symlink", refuse)
    set_latest(tmp_path, "2")
    assert not (tmp_path / "latest").is_symlink()
    assert find_export(tmp_path).path == tmp_path / "2"
    monkeypatch.undo()
    set_latest(tmp_path, "1")
    assert (tmp_path / "latest").is_symlink()
    assert find_export(tmp_path).path == tmp_path / "1"


def test_what_stands_in_the_way_of_latest_is_said(tmp_path):
    exported(tmp_path / "1")
    (tmp_path / "latest" / "held").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"latest.*: cannot be written: Is a directory"):
        set_latest(tmp_path, "1")
    assert sorted(os.listdir(tmp_path)) == ["1", "latest"]


def test_what_is_no_export_of_ours_is_said(tmp_path):
    with pytest.raises(ConfigError, match="nowhere: does not exist"):
        find_export(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no exported model"):
        find_export(tmp_path)
    (tmp_path / "weights.h5").touch()
    with pytest.raises(
        ConfigError, match=r"expected a folder, a \.keras or a \.tflite file, received 'weights.h5'"
    ):
        find_export(tmp_path / "weights.h5")
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ConfigError, match=r"is not an export of tfdist: there is no metadata\.json"):
        find_export(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"image_shape": [1, 2], "classes": []}', '{"image_shape": [1, 2, 3]}', "\udce9"]
)
def test_spoiled_metadata_are_said(tmp_path, text):
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "metadata.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"metadata\.json: is malformed"):
        find_export(tmp_path)


def test_a_latest_that_leads_elsewhere_is_not_followed(tmp_path):
    elsewhere = exported(tmp_path / "elsewhere")
    exports = tmp_path / "run" / "export"
    exports.mkdir(parents=True)
    (exports / "latest").write_text(f"../../{elsewhere.name}\n")
    with pytest.raises(ConfigError, match="has no exported model"):
        find_export(tmp_path / "run")


def test_metadata_keep_what_is_told(tmp_path):
    folder = exported(tmp_path / "1", data="digits", substitute_for="mnist", step=1)
    told = json.loads((folder / "metadata.json").read_text())
    assert (told["data"], told["substitute_for"], told["image_shape"]) == ("digits", "mnist", [8, 6, 3])


def test_an_address_is_no_place_of_a_model():
    with pytest.raises(
        ConfigError, match="model: expected a path of this machine, received 's3://bucket/run'"
    ):
        find_export("s3://bucket/run")
