import hashlib
import json
import logging
import os

import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import ConfigError, StorageError
from tfdist.training.checkpoints.checkpoint_files import (
    Checkpoint,
    check_variables,
    find_newest,
    list_steps,
    open_checkpoint,
    prune,
    save,
)
from tfdist.training.checkpoints.checkpoint_writer import CheckpointWriter


def values(scale=1.0):
    return {
        "model/0/dense/kernel": tf.constant([[1.5, -0.0], [np.nan, 3.25]]) * scale,
        "model/1/count": tf.constant(2**53 - 1, tf.int64),
        "optimizer/2/momentum": tf.cast([1.0, 0.1], tf.bfloat16),
    }


def read_all(found):
    return found.read(found.variables)


def test_what_is_saved_is_read_to_the_bit(tmp_path):
    written = save(tmp_path, 7, values(), {"best": {"accuracy": 0.9}})
    found = find_newest(tmp_path)
    assert found == written
    assert (found.step, found.facts) == (7, {"best": {"accuracy": 0.9}})
    for value, wanted in zip(read_all(found), values().values(), strict=True):
        assert np.asarray(value).tobytes() == wanted.numpy().tobytes()


@pytest.mark.parametrize("name", ["run[1]", "[", "a*b?", "back\\slash"])
def test_a_name_with_glob_characters_is_a_name(tmp_path, name):
    save(tmp_path / name, 7, values(), {})
    for value, wanted in zip(read_all(find_newest(tmp_path / name)), values().values(), strict=True):
        assert np.asarray(value).tobytes() == wanted.numpy().tobytes()


def test_the_files_are_tensorflows_own(tmp_path):
    save(tmp_path, 7, values(), {})
    assert tf.train.load_variable(str(tmp_path / "7" / "variables"), "model/1/count") == 2**53 - 1


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "variables.index").unlink(), "variables.index is missing"),
        (lambda folder: _flip(folder / "variables.data-00000-of-00001"), "is damaged"),
        (lambda folder: (folder / "about.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "about.json").write_text("[]"), "cannot be read"),
        (lambda folder: _change(folder / "about.json", format=99), "is of format 99"),
        (lambda folder: _change(folder / "about.json", variables=3), "cannot be read"),
        (lambda folder: _change(folder / "about.json", sha256={"../../etc/passwd": ""}), "passwd is missing"),
        (lambda folder: _change(folder / "about.json", sha256={}), "no SHA-256 of variables.index"),
        (lambda folder: _change(folder / "about.json", variables=[["x", [2], "int8"]]), "does not have 'x'"),
        (lambda folder: _forge(folder, "variables.data-00000-of-00001", -1), "is shorter than its 28 bytes"),
        (lambda folder: _forge(folder, "variables.index", -1), "cannot be read"),
        (lambda folder: _forge(folder, "variables.index", 0), "cannot be read"),
    ],
)
def test_a_damaged_one_is_passed_over_with_a_warning(tmp_path, caplog, harm, message):
    save(tmp_path, 5, values(), {})
    save(tmp_path, 10, values(), {})
    harm(tmp_path / "10")
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert find_newest(tmp_path).step == 5
    assert message in caplog.text


def _flip(file):
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)


def _forge(folder, name, size):
    """Cut a file off, and write the SHA-256 of the rest into about.json."""
    file = folder / name
    file.write_bytes(file.read_bytes()[:size])
    _sum_again(folder, file)


def _sum_again(folder, file):
    sums = json.loads((folder / "about.json").read_text())["sha256"]
    _change(folder / "about.json", sha256={**sums, file.name: hashlib.sha256(file.read_bytes()).hexdigest()})


def _change(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_there_may_be_none(tmp_path):
    assert find_newest(tmp_path / "none") is None
    (tmp_path / "notes").mkdir()
    assert list_steps(tmp_path) == []


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step in (5, 10, 15, 20):
        save(tmp_path, step, values(), {})
    prune(tmp_path, 2, also=[5])
    assert list_steps(tmp_path) == [5, 15, 20]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["15", "20", "5"]


def test_what_is_no_checkpoint_of_tfdist_is_left_alone(tmp_path):
    (tmp_path / "disk" / "2019").mkdir(parents=True)
    (tmp_path / "disk" / "2019" / "variables.csv").touch()
    os.mkfifo(tmp_path / "disk" / "3")
    (tmp_path / "run").symlink_to("disk")
    save(tmp_path / "elsewhere", 4, values(), {})
    (tmp_path / "disk" / "4").symlink_to("../elsewhere/4")
    for step in (5, 10, 15):
        save(tmp_path / "run", step, values(), {})
        prune(tmp_path / "run", 1)
    assert sorted(os.listdir(tmp_path / "disk")) == ["15", "2019", "3", "4"]
    assert open_checkpoint(tmp_path / "disk" / "4").step == 4
    for step in (3, 2019):
        with pytest.raises(StorageError, match=f"{step}: is in the way, and is not a checkpoint of tfdist"):
            save(tmp_path / "run", step, values(), {})
    assert os.listdir(tmp_path / "disk" / "2019") == ["variables.csv"]


def test_a_damaged_checkpoint_of_a_later_step_is_not_kept_in_place_of_the_last_one(tmp_path):
    save(tmp_path, 9, values(), {})
    (tmp_path / "9" / "about.json").unlink()
    (tmp_path / "9" / "notes").touch()
    with CheckpointWriter(tmp_path, keep=1, background=False) as writer:
        for step in (3, 4):
            writer.save(step, values(), {})
        assert list_steps(tmp_path) == [4, 9]
        writer.save(9, values(), {})
    assert list_steps(tmp_path) == [9]
    assert open_checkpoint(tmp_path / "9").step == 9


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 5, values(), {})
    save(tmp_path, 5, values(2.0), {})
    assert read_all(find_newest(tmp_path))[0][1, 1] == 6.5


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ({"a": tf.zeros([3, 2])}, r"it has model/0/dense/kernel 2x2 float32, .* has a 3x2 float32"),
        ({"a": tf.zeros([2, 2], tf.float64)}, r"2x2 float32, .* has a 2x2 float64"),
        ({"a": tf.zeros([2, 2])}, r"3 variables, the first extra one model/1/count scalar int64.* has 1"),
        ({**values(), "more": tf.zeros([4])}, r"it has 3, .* has 4 variables, the first extra one more 4 float32"),
    ],
)  # fmt: skip
def test_another_model_is_refused_with_the_first_difference(tmp_path, mine, message):
    found = save(tmp_path, 5, values(), {})
    with pytest.raises(ConfigError, match=message):
        check_variables(found, mine)
    check_variables(found, values())


def test_a_disk_that_fails_is_said_and_leaves_nothing(tmp_path):
    (tmp_path / "5").write_text("a file is in the way")
    (tmp_path / "checkpoints").write_text("here too")
    with pytest.raises(StorageError, match="cannot be written"):
        save(tmp_path / "checkpoints", 5, values(), {})
    assert isinstance(open_checkpoint(tmp_path / "5"), str)


def test_one_that_vanishes_before_it_is_read_is_said(tmp_path):
    found = save(tmp_path, 5, values(), {})
    prune(tmp_path, 1)
    for file in found.folder.iterdir():
        file.unlink()
    with pytest.raises(StorageError, match=r"cannot be read: .* Remove this checkpoint"):
        read_all(found)
    assert isinstance(found, Checkpoint)


@pytest.mark.parametrize("harm", [_flip, lambda file: file.write_bytes(file.read_bytes()[:-1])])
def test_values_that_are_damaged_with_their_sum_are_one_line(tmp_path, harm):
    found, file = save(tmp_path, 5, values(), {}), tmp_path / "5" / "variables.data-00000-of-00001"
    harm(file)
    _sum_again(tmp_path / "5", file)
    with pytest.raises(StorageError, match=r"cannot be read: .* Remove this checkpoint") as raised:
        read_all(found)
    assert "\n" not in str(raised.value)
