"""From an exported model to answers, by the command that a user types: the same ones by every way in."""

import csv
import io
import json
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from commands import python, tfdist, tfdist_forked
from tfdist.datasets.open_data import open_data
from tfdist.export.write_export import export
from tfdist.models.layers import Rescale

keras = tf.keras
COUNT = 12
PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def digits(cache):
    return open_data("digits", cache_dir=cache)


@pytest.fixture(scope="module")
def run(digits, tmp_path_factory):
    """Train a little on the digits that tfdist draws, and export as a run does."""
    keras.utils.set_random_seed(0)
    layers = [Rescale(1 / 255), keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input(digits.image_shape), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(digits.train(128), steps_per_epoch=60, shuffle=False, verbose=0)
    folder = tmp_path_factory.mktemp("run")
    images = digits.split("test").arrays()[0][:16]
    metadata = {"classes": list(digits.classes)}
    export(model, folder / "export", step=60, images=images, metadata=metadata, formats=("keras", "tflite"))
    return folder


@pytest.fixture(scope="module")
def inputs(digits, tmp_path_factory):
    """Write the first test images in every form in which they can be asked about."""
    folder = tmp_path_factory.mktemp("inputs")
    images, labels = (array[:COUNT] for array in digits.split("test").arrays())
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        png = tf.io.encode_png(image).numpy()
        for place in (folder / "flat", folder / "by_class" / str(label)):
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{row:02}.png").write_bytes(png)
    np.savez(folder / "x.npz", x=images, y=labels, key=np.arange(COUNT) + 2**40)
    np.savez(folder / "x_test.npz", x_test=images)
    for split in ("train", "test"):  # as a folder of TFRecord files has them
        (folder / "records").mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(folder / "records" / f"{split}.tfrecord")) as writer:
            for image, label in zip(images, labels, strict=True):
                features = {
                    "image": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])
                    ),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }
                writer.write(
                    tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
                )
        (folder / "records" / "labels.txt").write_text("\n".join(digits.classes))
    return folder


@pytest.fixture(scope="module")
def answers(run, inputs, cache, forking):
    """Ask by every way, two at a time."""
    latest = run / "export" / "latest"
    ways = {
        "data set": [run, "digits"],
        "flat": [run / "export", inputs / "flat", "--batch_size=5"],
        "by class": [latest, inputs / "by_class", "--grid", inputs / "grid.png"],
        "one": [run, inputs / "flat" / "03.png"],
        "npz": [latest / "model.tflite", inputs / "x.npz"],
        "x_test": [latest / "model.keras", inputs / "x_test.npz", "--output", inputs / "answers.csv"],
        "records": [run, inputs / "records", "--format=csv"],
    }

    def ask(way):
        model, source, *more = way
        return tfdist_forked("predict", "--model", model, "--input", source, *more, TFDIST_CACHE_DIR=cache)

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(ways, pool.map(ask, ways.values()), strict=True))
    for name, process in found.items():
        assert process.returncode == 0, f"{name}: {process.stderr}"
    return found


@pytest.fixture(scope="module")
def wanted(answers):
    """Return the answers for the data set's first images, with which the other answers are compared."""
    return lines(answers["data set"].stdout)[:COUNT]


def test_a_data_set_is_answered_whole_and_its_accuracy_is_right(answers):
    rows = lines(answers["data set"].stdout)
    assert [row["key"] for row in rows] == list(range(10_000))
    right = np.mean([row["label"] == row["truth"] for row in rows])
    assert 0.6 < right < 1.0  # a linear model, 60 steps old
    assert f"accuracy  {right:.4f} on 10000 whose label is known" in answers["data set"].stderr


def test_a_flat_folder_gets_the_same_answers_without_labels(answers, wanted):
    rows = lines(answers["flat"].stdout)
    assert [row["file"] for row in rows] == [f"{row:02}.png" for row in range(COUNT)]
    assert not any("truth" in row for row in rows)
    same_answers(rows, wanted)
    assert "accuracy" not in answers["flat"].stderr
    (one,) = lines(answers["one"].stdout)
    # A batch of one is a product with a vector, which is rounded otherwise on some processors.
    assert {**one, "score": rows[3]["score"]} == {**rows[3], "key": 0}
    same_answers([one], [rows[3]])


def test_folders_named_after_classes_give_the_labels(answers, wanted, inputs):
    rows = sorted(lines(answers["by class"].stdout), key=lambda row: row["file"].rpartition("/")[2])
    assert [row["file"] for row in rows] == [f"{row['truth']}/{n:02}.png" for n, row in enumerate(wanted)]
    same_answers(rows, wanted)
    right = np.mean([row["label"] == row["truth"] for row in wanted])
    assert f"accuracy  {right:.4f} on {COUNT} whose label is known" in answers["by class"].stderr
    picture = tf.io.decode_png((inputs / "grid.png").read_bytes()).numpy()
    assert picture.shape[2] == 3
    reddish = picture[..., 0].astype(int) - picture[..., 1:].max(axis=-1)  # of letters with soft edges
    assert (reddish > 60).any() == (right < 1.0)  # wrong answers are captioned in red


def test_an_npz_may_bring_its_own_keys(answers, wanted):
    rows = lines(answers["npz"].stdout)
    assert [row["key"] for row in rows] == [2**40 + n for n in range(COUNT)]
    same_answers(rows, wanted)
    assert [row["truth"] for row in rows] == [row["truth"] for row in wanted]


@pytest.mark.parametrize("way", ["x_test", "records"])
def test_csv_holds_the_same(answers, wanted, inputs, way):
    text = (inputs / "answers.csv").read_text() if way == "x_test" else answers[way].stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["key", "file", "label", "class", "score", "truth"]
    assert [row["key"] for row in rows] == [str(n) for n in range(COUNT)]
    assert [row["truth"] for row in rows] == ["" if way == "x_test" else str(row["truth"]) for row in wanted]
    same_answers([{**row, "label": int(row["label"]), "score": float(row["score"])} for row in rows], wanted)


def same_answers(rows, wanted):
    assert [row["label"] for row in rows] == [row["label"] for row in wanted]
    assert [row["class"] for row in rows] == [row["class"] for row in wanted]
    np.testing.assert_allclose([row["score"] for row in rows], [row["score"] for row in wanted], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "digits"], "--model: is missing. Name a run's folder"),
        (["--model", "{run}"], "--input: is missing. Name images or a data set"),
        (["--model", "{run}/nowhere", "--input", "digits"], "{run}/nowhere: does not exist"),
        (["--model", "{inputs}", "--input", "digits"], "{inputs}: has no exported model"),
        (["--model", "{run}", "--input", "{inputs}/no.png"], "--input: {inputs}/no.png does not exist"),
        (["--model", "{run}", "--input", "digits", "--output", "{run}/no/x"], "--output: there is no folder {run}/no"),
        (["--model", "{run}", "--input", "digits", "--output", "{run}"], "--output: expected a file, received the folder"),
        (["--model", "{run}", "--input", "digits", "--grid", "{run}/x.jpg"], "--grid: expected a name that ends in .png"),
        (["--model", "{run}", "--input", "digits", "--batch_size=0"], "command line: flag --batch_size=0"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_before_tensorflow_is_loaded(run, inputs, arguments, message):
    words = [word.format(run=run, inputs=inputs) for word in arguments]
    process = tfdist("predict", *words, PYTHONPROFILEIMPORTTIME="1")
    assert process.returncode == 2
    *imported, said = process.stderr.splitlines()
    assert message.format(run=run, inputs=inputs) in said
    assert not any(line.rpartition("|")[2].strip().startswith("tensorflow") for line in imported)


@pytest.mark.usefixtures("forking")
def test_what_the_model_cannot_take_is_named_and_nothing_is_written(run, inputs, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "a.png").write_bytes((inputs / "flat" / "00.png").read_bytes())
    (wrong / "b.png").write_bytes(b"no image")
    output = tmp_path / "answers.jsonl"
    process = tfdist_forked("predict", "--model", run, "--input", wrong, "--batch_size=1", "--output", output)
    assert process.returncode == 2
    assert f"{wrong}/b.png: cannot be read:" in process.stderr
    assert "Traceback" not in process.stderr
    assert sorted(os.listdir(tmp_path)) == ["wrong"]


def test_the_function_predicts():
    import tfdist

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    x = np.ones((3, 2), "float32")
    found = tfdist.predict(
        model, tf.data.Dataset.from_tensor_slices(x).batch(2), strategy=tf.distribute.get_strategy()
    )
    np.testing.assert_allclose(found, model(x), atol=1e-6)


@pytest.mark.slow
@pytest.mark.again  # the tests above predict by each of these flags
def test_what_the_page_shows_runs(run, inputs, cache, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ps2w").symlink_to(run)
    (tmp_path / "photos").symlink_to(inputs / "by_class")
    page = PAGE.read_text("utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shown = re.findall(r"^    (tfdist predict .*)$", page, re.MULTILINE)
    commands = [["-m", *shlex.split(line)] for line in shown if "://" not in line]  # there is no bucket here
    assert len(commands) == 3
    printed = []
    for words in (["-c", script], *commands):
        process = python(*words, cwd=tmp_path, TFDIST_CACHE_DIR=cache)
        assert process.returncode == 0, process.stderr
        printed.append(process.stdout)
    paired = dict(line.split() for line in printed[0].splitlines())
    assert paired == {f"photos/{row['file']}": str(row["label"]) for row in lines(printed[2])}
    assert len(lines((tmp_path / "answers.jsonl").read_text())) == 10_000
    assert (tmp_path / "answers.png").read_bytes().startswith(b"\x89PNG")
    assert printed[3].startswith("key,file,label,class,score,truth\n")
