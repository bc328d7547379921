"""Which images predict accepts and refuses, and the drawing of the answers."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfdist.errors import DataError
from tfdist.export import write_predictions
from tfdist.export.export_folder import Exported
from tfdist.export.image_grid import Caption, draw_grid
from tfdist.export.prediction_inputs import read_images

MODEL = Exported(Path("unused"), "saved_model", (8, 6, 3), ("cat", "dog"), {})


def write(path, shape=(8, 6, 3), level=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_png(np.full(shape, level, np.uint8)).numpy())


def read(source, model=MODEL, batch=2):
    return list(read_images(str(source), model, batch))


def test_images_in_a_folder_and_in_folders_of_classes_come_in_the_order_of_their_names(tmp_path):
    for name in ("b.png", "a.png", "dog/2.png", "dog/1.png", "cat/3.png"):
        write(tmp_path / name)
    (tmp_path / ".DS_Store").touch()
    batches = read(tmp_path)
    assert [batch.images.shape for batch in batches] == [(2, 8, 6, 3), (2, 8, 6, 3), (1, 8, 6, 3)]
    told = [
        (batch.keys[i], batch.files[i], batch.labels[i]) for batch in batches for i in range(len(batch.keys))
    ]
    assert told == [
        (0, "a.png", None), (1, "b.png", None), (2, "cat/3.png", 0), (3, "dog/1.png", 1), (4, "dog/2.png", 1)
    ]  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("wanted", [1, 3])
def test_grey_colours_and_transparency_become_what_the_model_takes(tmp_path, channels, wanted):
    write(tmp_path / "x.png", (8, 6, channels))
    model = Exported(MODEL.path, "saved_model", (8, 6, wanted), MODEL.classes, {})
    (batch,) = read(tmp_path / "x.png", model)
    assert batch.images.shape == (1, 8, 6, wanted)
    for name in ("x.bmp", "x.gif"):
        image = Image.open(tmp_path / "x.png")
        (image if name == "x.bmp" else image.convert("RGB")).save(tmp_path / name)
        (other,) = read(tmp_path / name, model)
        assert other.images.shape == (1, 8, 6, wanted)
        assert set(other.images.ravel().tolist()) <= {99, 100, 101}
    if channels < 4:  # with an alpha channel the level of grey is the encoder's own
        assert set(batch.images.ravel().tolist()) <= {99, 100, 101}


def test_what_cannot_be_taken_from_a_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="has no images"):
        read(tmp_path)
    write(tmp_path / "dogs" / "1.png")
    message = (
        r"dogs: expected a folder named after a class of the model, received 'dogs'\. Did you mean 'dog'\?"
    )
    with pytest.raises(DataError, match=message):
        read(tmp_path)
    (tmp_path / "dogs").rename(tmp_path / "dog")
    write(tmp_path / "dog" / "puppies" / "1.png")
    with pytest.raises(DataError, match="puppies: is a folder in the folder of a class"):
        read(tmp_path)


def test_an_image_that_cannot_be_taken_is_named(tmp_path):
    write(tmp_path / "x.png", (8, 7, 3))
    with pytest.raises(
        DataError, match=r"x\.png: expected an image of 8 x 6 x 3, received 8 x 7 x 3\. Resize it"
    ):
        read(tmp_path)
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n, and no more")
    with pytest.raises(DataError, match=r"x\.png: cannot be read"):
        read(tmp_path)


IMAGES = np.zeros((3, 8, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": IMAGES}, r"has neither x nor x_test\. Its arrays: pictures"),
        ({"x": IMAGES.astype(float)}, r"x: expected uint8 \[images, height, width, channels\], received float64"),
        ({"x": IMAGES[:, :7]}, "x: expected an image of 8 x 6 x 3, received 7 x 6 x 3"),
        ({"x": IMAGES, "y": np.zeros(2, int)}, r"y: expected 3 whole numbers, received int64 \[2\]"),
        ({"x": IMAGES, "y": np.array([0, 2, 1])}, "y: expected labels from 0 to 1, received 2"),
        ({"x_test": IMAGES, "y_test": np.array([0, -1, 1])}, "y_test: expected labels from 0 to 1, received -1"),
        ({"x": IMAGES, "key": np.array(["a", "b", "c"])}, "key: expected 3 whole numbers, received <U1"),
    ],
)  # fmt: skip
def test_an_npz_that_cannot_be_taken_is_said(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=r"x\.npz.*" + message):
        read(tmp_path / "x.npz")


def test_an_npz_that_is_none_is_said(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"none")
    with pytest.raises(DataError, match=r"x\.npz: cannot be read"):
        read(tmp_path / "x.npz")


def test_a_data_set_counts_for_the_accuracy_as_far_as_the_model_has_its_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    x, y = np.zeros((4, 8, 6, 3), np.uint8), np.array([0, 1, 2, 1])
    records = tmp_path / "records"
    records.mkdir()
    for split in ("train", "test"):
        with tf.io.TFRecordWriter(str(records / f"{split}.tfrecord")) as writer:
            for image, label in zip(x, y, strict=True):
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }  # fmt: skip
                writer.write(
                    tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
                )
    (records / "labels.txt").write_text("dog\nbird\ncat")
    batches = read(records)
    assert [list(batch.labels) for batch in batches] == [[1, None], [0, None]]  # dog, bird; cat, bird
    with pytest.raises(DataError, match="expected an image of 9 x 6 x 3, received 8 x 6 x 3"):
        read(records, Exported(MODEL.path, "saved_model", (9, 6, 3), MODEL.classes, {}))


def drawn(*pictures):
    images, captions = zip(*pictures, strict=True) if pictures else ((), ())
    return tf.io.decode_png(draw_grid(images, captions)).numpy()


def test_a_grid_shows_each_picture_above_its_caption():
    red, grey = np.zeros((4, 4, 3), np.uint8), np.full((2, 4, 1), 90, np.uint8)
    red[..., 0] = 255
    picture = drawn((red, Caption("I")), (grey, Caption("", "not é")))
    assert (picture[8:120, 8:120] == [255, 0, 0]).all()
    assert (picture[8:64, 128:240] == 90).all()  # half as high as it is wide
    assert (picture[64:120, 128:240] == 255).all()
    assert (picture[120:134, 8:120] < 100).all(-1).any()
    assert (picture[120:134, 128:240] == 255).all()
    red, green, blue = picture[134:148, 128:240].reshape(-1, 3).min(0)
    assert red > 180
    assert green < 100
    assert blue < 100


def test_a_grid_has_room_for_any_number():
    one = (np.zeros((3, 3, 1), np.uint8), Caption("x" * 99))
    sizes = [drawn(*[one] * count).shape[:2] for count in (0, 1, 4, 5, 64)]
    assert sizes[:2] == [sizes[1]] * 2
    assert [(height // 150, width // 115) for height, width in sizes[1:]] == [(1, 1), (2, 2), (2, 3), (8, 8)]


def test_answers_go_into_a_fifo_and_do_not_replace_it(tmp_path, monkeypatch):
    monkeypatch.setattr(write_predictions, "load", lambda _: None)
    monkeypatch.setattr(write_predictions, "read_images", lambda *_: iter(()))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_predictions.answer(MODEL, "x", batch_size=2, output=fifo, form="csv")
    assert os.read(reader, 99) == b"key,file,label,class,score,truth\n"
    os.close(reader)
    assert fifo.is_fifo()
    write_predictions.answer(MODEL, "x", batch_size=2, output=tmp_path / "file", form="csv")
    assert sorted(os.listdir(tmp_path)) == ["fifo", "file"]
