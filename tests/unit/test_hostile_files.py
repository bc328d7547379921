"""Damaged and special files are one line, with exit status 2, and never a wait without end."""

import json
import logging
import os
import struct
import zipfile

import numpy as np
import pytest

from tfdist._utils.check_and_expand_paths import path_or_address
from tfdist._utils.read_untrusted_files import read_json_file
from tfdist.errors import ConfigError, DataError, TfdistError
from tfdist.export.export_folder import find_export, write_metadata

tf = pytest.importorskip("tensorflow")

from tfdist.datasets.disk_cache import Contents, prepare  # noqa: E402
from tfdist.datasets.from_files import read_path  # noqa: E402
from tfdist.datasets.open_data import open_data  # noqa: E402
from tfdist.datasets.read_npz import read_npz  # noqa: E402
from tfdist.export.load_export import load  # noqa: E402
from tfdist.export.prediction_inputs import read_images  # noqa: E402
from tfdist.trainer.checkpoint_manager import _Facts as Facts  # noqa: E402
from tfdist.trainer.starts_and_lost_steps import Start, _read_history  # noqa: E402
from tfdist.training.checkpoints.checkpoint_files import Checkpoint, open_checkpoint  # noqa: E402
from tfdist.training.checkpoints.share_checkpoint import _converted  # noqa: E402

pytestmark = pytest.mark.timeout(120)

TEXTS = [
    b"",
    b"\xff",
    b"[]",
    b"3",
    b"{}",
    b"[" * 200_000,
    b'{"image_shape": [1e999, 1, 1], "classes": []}',
    b'{"format": 1}',
]


def place(path, kind):
    """Put a file of one kind there."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(kind)


SPECIAL = ["fifo", "device", "loop", "folder"]


def names(value):
    return value if isinstance(value, str) else value[:12].decode("latin-1")


def problem(call):
    with pytest.raises(TfdistError) as caught:
        call()
    assert caught.value.exit_code == 2
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.fixture
def exported(tmp_path):
    """Return the folder of a run with an export that TensorFlow can load."""
    folder = tmp_path / "run" / "export" / "7"
    tf.saved_model.save(tf.Module(), str(folder))
    write_metadata(folder, image_shape=(4, 4, 1), about={"classes": ["a", "b"]})
    (folder.parent / "latest").symlink_to("7")
    return tmp_path / "run"


@pytest.mark.parametrize("kind", [*TEXTS, *SPECIAL], ids=names)
def test_a_damaged_description_of_an_export(exported, kind):
    place(exported / "export" / "7" / "metadata.json", kind)
    assert "metadata.json" in problem(lambda: find_export(exported))


@pytest.mark.parametrize(
    "kind", [b"\xff", b"a\0b", b"x" * 5000, "fifo", "device", "loop", "folder"], ids=names
)
def test_a_damaged_name_of_the_newest_export(exported, kind):
    place(exported / "export" / "latest", kind)
    problem(lambda: find_export(exported))


@pytest.mark.parametrize("kind", ["fifo", "device", "loop"])
def test_an_export_whose_variables_are_no_file(exported, kind):
    place(exported / "export" / "7" / "fingerprint.pb", kind)
    assert "cannot be loaded" in problem(lambda: load(find_export(exported)))


@pytest.mark.parametrize("kind", [*TEXTS, *SPECIAL], ids=names)
def test_a_damaged_checkpoint_is_passed_over(tmp_path, kind):
    place(tmp_path / "about.json", kind)
    assert isinstance(open_checkpoint(tmp_path), str)


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_checkpoint_whose_variables_are_no_file_is_passed_over(tmp_path, kind):
    about = {"format": 1, "step": 7, "facts": {}, "variables": [], "sha256": {"variables.index": ""}}
    (tmp_path / "about.json").write_text(json.dumps(about))
    place(tmp_path / "variables.index", kind)
    assert "cannot be read" in open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "facts", [{}, {"trained": 3}, {"trained": {}, "evaluation": [], "best": {}}], ids=str
)
def test_a_checkpoint_without_what_a_run_needs(tmp_path, facts):
    with pytest.raises(ConfigError, match=r"about\.json: is not a checkpoint of tfdist train: "):
        _converted(Checkpoint(tmp_path, 7, facts, ()), Facts, "tfdist train")


@pytest.mark.parametrize("kind", [*TEXTS, b'[{"at_step": "x", "lost": 1}]', *SPECIAL], ids=names)
def test_a_damaged_history_begins_again(tmp_path, kind, caplog):
    place(tmp_path / "history.json", kind)
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert _read_history(tmp_path / "history.json") == []
    assert kind == b"[]" or "the report counts from this start on" in caplog.text


def test_a_history_is_read(tmp_path):
    assert _read_history(tmp_path / "history.json") == []
    (tmp_path / "history.json").write_text('[{"at_step": 5, "lost": 1}]')
    assert _read_history(tmp_path / "history.json") == [Start(5, 1)]


def test_a_text_without_end_is_not_read_to_it(tmp_path):
    with (tmp_path / "long.json").open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(ValueError, match="longer than 64 MiB"):
        read_json_file(tmp_path / "long.json")


@pytest.mark.parametrize("kind", [*TEXTS, "fifo", "device", "folder"], ids=names)
def test_a_damaged_prepared_data_set_is_prepared_again(tmp_path, kind):
    def read():
        part = [(np.zeros((3, 2, 2, 1), np.uint8), np.zeros(3, np.int32))]
        return Contents((2, 2, 1), ("a",), part, part)

    first = prepare("x", ["y"], read, tmp_path)
    place(first.folder / "about.json", kind)
    assert prepare("x", ["y"], read, tmp_path) == first


def npz(path, **changes):
    images, labels = np.zeros((4, 4, 4, 1), np.uint8), np.arange(4)
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels, **changes}
    np.savez_compressed(path, **arrays)
    return bytearray(path.read_bytes())


def encrypted(data):
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(mark, at + 4)
    return data


def damaged(data):
    at = data.find(b"x_train.npy") + 60
    data[at : at + 20] = b"\xff" * 20
    return data


def of_another_method(data):
    return data.replace(b"\x08\x00", b"\x63\x00")


@pytest.mark.parametrize(
    "harm", [encrypted, damaged, of_another_method, lambda data: data[:200], lambda data: b"\xff"]
)
def test_a_damaged_npz_file(tmp_path, harm):
    path = tmp_path / "x.npz"
    path.write_bytes(harm(npz(path)))
    assert "cannot be read" in problem(lambda: read_npz(path))


def test_an_npz_file_that_is_an_npy_file(tmp_path):
    path = tmp_path / "x.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "cannot be read" in problem(lambda: read_npz(path))


def test_an_array_whose_header_names_a_size_that_no_machine_has(tmp_path):
    path, header = (
        tmp_path / "x.npz",
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000,), }",
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x_train.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    assert "cannot be read" in problem(lambda: read_npz(path))


def test_an_npz_file_of_more_than_the_memory(tmp_path, monkeypatch):
    npz(tmp_path / "x.npz", x_train=np.zeros((1000, 32, 32, 3), np.uint8))  # 3 MB, in 3 kB
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    assert "half of this machine's memory" in problem(lambda: read_npz(tmp_path / "x.npz"))


@pytest.mark.parametrize("kind", ["fifo", "device", "loop"])
def test_special_files_as_data(tmp_path, kind):
    folder, records = tmp_path / "folder", tmp_path / "records"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(tf.io.encode_png(np.zeros((4, 4, 1), np.uint8)).numpy())
    records.mkdir()
    place(folder / "b" / "2.png", kind)
    for name in ("train.tfrecord", "test.tfrecord"):
        place(records / name, kind)
    place(tmp_path / "x.npz", kind)
    for path in (folder, records, tmp_path / "x.npz"):
        problem(lambda path=path: read_path(path, None))


@pytest.mark.parametrize("kind", ["fifo", "device", "loop"])
def test_special_files_to_predict(exported, tmp_path, kind):
    (tmp_path / "in").mkdir()
    place(tmp_path / "in" / "1.png", kind)
    model = find_export(exported)
    assert "1.png: cannot be read" in problem(lambda: next(read_images(str(tmp_path / "in"), model, 8)))


def test_names_that_are_not_utf_8(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"run_dir: .*caf.* is not UTF-8"):
        path_or_address(name, "run_dir")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.png").touch()
    assert "a name that is not UTF-8" in problem(lambda: read_path(tmp_path, None))


@pytest.mark.parametrize(
    "name", ["a/b\0c", "x" * 256, "a/" + "é" * 128], ids=["NUL", "long", "long in bytes"]
)
def test_names_that_no_file_can_have(name):
    with pytest.raises(ConfigError, match="run_dir: expected names without NUL, of at most 255 bytes"):
        path_or_address(name, "run_dir")


def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / "loop" / "x"):
        with pytest.raises(DataError):
            open_data(str(path), cache_dir=tmp_path)
    with pytest.raises(DataError, match="cannot be found"):
        open_data("~nobody-of-this-name/x", cache_dir=tmp_path)
