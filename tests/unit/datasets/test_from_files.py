"""Check the reading of a user's own files, and that what is wrong with one is said with its name."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.datasets.open_data import DataRequest, open_data
from tfdist.errors import DataError

RANDOM = np.random.default_rng(0)


def picture(height=6, width=5, channels=3):
    return RANDOM.integers(0, 256, (height, width, channels)).astype(np.uint8)


def write_png(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_png(image).numpy())


def everything(data, split):
    images, labels = data.split(split).arrays()
    return np.array(images), list(labels)


@pytest.fixture
def folder(tmp_path):
    """Make two classes with 3 training and 2 test images each."""
    for split, count in (("train", 3), ("test", 2)):
        for name in ("cat", "dog"):
            for number in range(count):
                write_png(tmp_path / "pets" / split / name / f"{number}.png", picture())
    return tmp_path / "pets"


def opened(path, tmp_path, **options):
    return open_data(str(path), cache_dir=tmp_path / "cache", **options)


def test_tensorflow_is_needed_only_to_read_a_source(folder, tmp_path):
    cache = tmp_path / "cache"
    assert DataRequest(str(folder), cache_dir=cache).needs_tensorflow
    assert DataRequest("mnist", data_dir=tmp_path / "nowhere", cache_dir=cache).needs_tensorflow
    assert DataRequest("gs://bucket/pets", cache_dir=cache).needs_tensorflow
    assert not DataRequest("digits", cache_dir=cache).needs_tensorflow
    opened(folder, tmp_path)
    assert not DataRequest(str(folder), cache_dir=cache).needs_tensorflow
    write_png(folder / "test" / "cat" / "more.png", picture())
    assert DataRequest(str(folder), cache_dir=cache).needs_tensorflow


def refused(path, tmp_path, **options):
    with pytest.raises(DataError) as caught:
        opened(path, tmp_path, **options)
    return str(caught.value)


def test_a_folder_by_class(folder, tmp_path):
    data = opened(folder, tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.image_shape == (6, 5, 3)
    images, labels = everything(data, "train")
    assert labels == [0, 0, 0, 1, 1, 1]
    second_dog = tf.io.decode_png((folder / "train" / "dog" / "1.png").read_bytes()).numpy()
    np.testing.assert_array_equal(images[4], second_dog)
    assert data.test_examples == 4


def test_the_first_test_images_are_of_all_classes(tmp_path):
    for split, count in (("train", 1), ("test", 40)):
        for name in ("cat", "dog"):
            for number in range(count):
                write_png(tmp_path / "pets" / split / name / f"{number}.png", picture(2, 2))
    data = opened(tmp_path / "pets", tmp_path)
    _, labels = everything(data, "test")
    assert sorted(labels) == [0] * 40 + [1] * 40
    assert 5 <= sum(labels[:20]) <= 15
    (tmp_path / "pets").rename(tmp_path / "moved")  # the order follows from the names in the folder
    assert opened(tmp_path / "moved", tmp_path).fingerprint == data.fingerprint


def test_a_folder_in_the_folder_of_a_class_is_refused(folder, tmp_path):
    write_png(folder / "train" / "cat" / "2023" / "1.png", picture())
    message = f"{folder}/train/cat/2023: is a folder in the folder of a class. Replace it by its images"
    assert refused(folder, tmp_path) == message


@pytest.mark.parametrize(("channels", "left"), [(4, 3), (2, 1)])
def test_transparency_is_dropped_from_all_images(folder, tmp_path, channels, left):
    for path in folder.rglob("*.png"):
        write_png(path, picture(channels=channels))
    data = opened(folder, tmp_path)
    assert data.image_shape == (6, 5, left)
    first = tf.io.decode_png((folder / "train" / "cat" / "0.png").read_bytes(), channels=left).numpy()
    np.testing.assert_array_equal(everything(data, "train")[0][0], first)


def test_a_grey_image_with_transparency_leaves_others_their_kind(folder, tmp_path):
    first, *others = sorted((folder / "train").rglob("*.png"))
    for path in folder.rglob("*.png"):
        write_png(path, picture(channels=1))
    write_png(others[-1], picture(channels=2))
    assert opened(folder, tmp_path).image_shape == (6, 5, 1)
    for path in folder.rglob("*.png"):
        write_png(path, picture(channels=2 if path == first else 3))
    assert "expected an image of 6 x 5 x 1, received 6 x 5 x 3" in refused(folder, tmp_path)


def test_labels_of_one_class_are_refused(tmp_path):
    images, labels = np.stack([picture() for _ in range(4)]), np.zeros(4, np.int32)
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    problem = "expected labels of at least two classes, received 1"
    assert refused(tmp_path / "a.npz", tmp_path) == f"{tmp_path}/a.npz: y_train: {problem}"
    for split in ("train", "test"):
        write_records(tmp_path / "r" / f"{split}.tfrecord", [example(image, 0) for image in images])
    assert refused(tmp_path / "r", tmp_path) == f"{tmp_path}/r: {problem}"


def test_a_changed_file_is_noticed(folder, tmp_path):
    before = opened(folder, tmp_path)
    write_png(folder / "train" / "dog" / "1.png", picture())
    after = opened(folder, tmp_path)
    assert before.fingerprint != after.fingerprint
    assert opened(folder, tmp_path) == after


def test_without_test_images_every_tenth_is_one(tmp_path):
    for name in ("a", "b"):
        for number in range(20):
            write_png(tmp_path / "all" / name / f"{number:02}.png", picture(4, 4))
    data = opened(tmp_path / "all", tmp_path)
    assert (data.train_examples, data.test_examples) == (36, 4)
    train, test = (everything(data, split)[0] for split in ("train", "test"))
    assert not {image.tobytes() for image in train} & {image.tobytes() for image in test}


def test_too_few_images_to_hold_any_out(tmp_path):
    for name in ("a", "b"):
        write_png(tmp_path / "all" / name / "1.png", picture(4, 4))
    assert "has no examples" in refused(tmp_path / "all", tmp_path)


def test_images_of_several_sizes_need_a_size(folder, tmp_path):
    odd = folder / "train" / "dog" / "2.png"
    write_png(odd, picture(8, 8))
    message = refused(folder, tmp_path)
    assert message.startswith(f"{odd}: expected an image of 6 x 5 x 3, received 8 x 8 x 3. Set image_size")
    assert opened(folder, tmp_path, image_size=(4, 4)).image_shape == (4, 4, 3)


def test_resizing_keeps_a_plain_colour(tmp_path):
    for split in ("train", "test"):
        for name, value in (("dark", 10), ("light", 200)):
            for side in (8, 13):
                image = np.full((side, side + 1, 3), value, np.uint8)
                write_png(tmp_path / "plain" / split / name / f"{side}.png", image)
    images, labels = everything(opened(tmp_path / "plain", tmp_path, image_size=(5, 7)), "train")
    assert images.shape == (4, 5, 7, 3)
    assert (
        [int(image.min()) for image in images] == [int(image.max()) for image in images] == [10, 10, 200, 200]
    )
    assert labels == [0, 0, 1, 1]


def test_a_grey_image_among_colours_is_spread(folder, tmp_path):
    grey = picture(channels=1)
    write_png(folder / "train" / "dog" / "2.png", grey)
    images, _ = everything(opened(folder, tmp_path), "train")
    np.testing.assert_array_equal(images[5], np.repeat(grey, 3, axis=2))


def test_a_colour_among_grey_images_is_named(folder, tmp_path):
    write_png(folder / "train" / "cat" / "0.png", picture(channels=1))
    message = refused(folder, tmp_path)
    assert message.startswith(f"{folder / 'train' / 'cat' / '1.png'}: expected an image of 6 x 5 x 1")
    assert "Convert all images to colour, or all to grey" in message


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n broken"])
def test_what_is_no_image_is_named(folder, tmp_path, content):
    bad = folder / "test" / "cat" / "1.png"
    bad.write_bytes(content)
    assert refused(folder, tmp_path).startswith(f"{bad}: cannot be read: ")


def test_a_missing_or_empty_class_folder_is_named(folder, tmp_path):
    for file in (folder / "test" / "dog").iterdir():
        file.unlink()
    assert refused(folder, tmp_path) == f"{folder / 'test' / 'dog'}: the folder of a class has no images"
    (folder / "test" / "dog").rmdir()
    assert (
        refused(folder, tmp_path)
        == f"{folder / 'test'}: expected one folder for each of at least two classes, received 1"
    )
    write_png(folder / "test" / "cow" / "1.png", picture())
    assert refused(folder, tmp_path) == f"{folder / 'test'}: has no folder for the class 'dog'"


def test_half_a_split_is_refused(folder, tmp_path):
    (folder / "test").rename(folder / "other")
    assert "has a folder 'train' and no folder 'test'" in refused(folder, tmp_path)


def test_a_path_that_is_not_there_and_one_of_no_use(tmp_path):
    assert "does not exist" in refused(tmp_path / "nowhere", tmp_path)
    (tmp_path / "notes.txt").write_text("")
    assert "expected an .npz file or a folder, received a .txt file" in refused(
        tmp_path / "notes.txt", tmp_path
    )


def arrays(**changes):
    made = {
        "x_train": RANDOM.integers(0, 256, (7, 4, 4)).astype(np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2, 0]),
        "x_test": RANDOM.integers(0, 256, (3, 4, 4)).astype(np.uint8),
        "y_test": np.array([[0], [1], [2]]),
    }
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


def test_an_npz_file(tmp_path):
    content = arrays()
    np.savez(tmp_path / "own.npz", **content)
    data = opened(tmp_path / "own.npz", tmp_path)
    assert (data.image_shape, data.classes) == ((4, 4, 1), ("0", "1", "2"))
    np.testing.assert_array_equal(everything(data, "train")[0][..., 0], content["x_train"])
    assert everything(data, "test")[1] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "has no y_test. Its arrays: x_train"),
        ({"x_train": np.zeros((7, 4, 4))}, "x_train: expected uint8"),
        ({"x_train": np.zeros((7, 16), np.uint8)}, "received uint8 [7, 16]"),
        ({"y_train": np.zeros(6, int)}, "y_train: expected 7 labels, received 6"),
        ({"y_train": np.zeros(7)}, "y_train: expected whole numbers from 0"),
        ({"y_test": np.array([0, -1, 2])}, "y_test: expected whole numbers from 0"),
        ({"x_test": np.zeros((3, 4, 5), np.uint8)}, "x_test: expected images of"),
        ({"classes": np.array(["a", "b"])}, "expected labels below 2, the number of classes, received 2"),
        ({"x_test": np.zeros((0, 4, 4), np.uint8), "y_test": np.zeros(0, int)}, "y_test: expected whole"),
    ],
)
def test_an_npz_file_that_is_wrong(tmp_path, changes, message):
    np.savez(tmp_path / "own.npz", **arrays(**changes))
    assert message in refused(tmp_path / "own.npz", tmp_path)


def test_an_npz_file_that_is_none(tmp_path):
    (tmp_path / "own.npz").write_bytes(b"PK\x03\x04 and so on")
    assert "own.npz: cannot be read" in refused(tmp_path / "own.npz", tmp_path)


def example(image, label, image_key="image", label_key="label"):
    encoded = image if isinstance(image, bytes) else tf.io.encode_png(image).numpy()
    features = {
        image_key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        label_key: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    # In one order: it is part of the names of tests, which two processes must agree on.
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )


def write_records(path, records):
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


@pytest.mark.parametrize("keys", [("image", "label"), ("image/encoded", "image/class/label")])
def test_tfrecord_files(tmp_path, keys):
    images = [picture() for _ in range(5)]
    write_records(
        tmp_path / "r" / "train-0.tfrecord", [example(i, k, *keys) for k, i in enumerate(images[:2])]
    )
    write_records(tmp_path / "r" / "train-1.tfrecord", [example(images[2], 2, *keys)])
    write_records(tmp_path / "r" / "test.tfrecord", [example(i, 1, *keys) for i in images[3:]])
    data = opened(tmp_path / "r", tmp_path)
    assert data.classes == ("0", "1", "2")
    np.testing.assert_array_equal(everything(data, "train")[0], images[:3])
    assert everything(data, "train")[1] == [0, 1, 2]
    (tmp_path / "r" / "labels.txt").write_text("ant\nbee\ncat\ndog\n")
    assert opened(tmp_path / "r", tmp_path).classes == ("ant", "bee", "cat", "dog")


def test_a_word_of_a_tfrecord_files_name_says_what_it_is_for(tmp_path):
    records = [example(picture(), k % 2) for k in range(4)]
    write_records(tmp_path / "r" / "medieval-train-0.tfrecord", records[:3])
    write_records(tmp_path / "r" / "medieval-test-0.tfrecord", records[3:])
    data = opened(tmp_path / "r", tmp_path)
    assert (data.train_examples, data.test_examples) == (3, 1)
    write_records(tmp_path / "r" / "train-test.tfrecord", records)
    message = "train-test.tfrecord: its name stands for training and for test data. Rename it"
    assert message in refused(tmp_path / "r", tmp_path)


def test_validation_files_beside_test_files_are_not_test_data(tmp_path, caplog):
    write_records(tmp_path / "r" / "x-train.tfrecord", [example(picture(), k) for k in range(2)])
    write_records(tmp_path / "r" / "x-validation.tfrecord", [example(picture(), 0) for _ in range(3)])
    assert opened(tmp_path / "r", tmp_path).test_examples == 3
    assert not caplog.messages
    write_records(tmp_path / "r" / "x-test.tfrecord", [example(picture(), 1)])
    assert opened(tmp_path / "r", tmp_path).test_examples == 1
    line = f"{tmp_path}/r: the test data are the files of 'test'; not used: x-validation.tfrecord"
    assert caplog.messages == [line]


def test_other_splits_of_the_same_examples_are_other_data(tmp_path):
    images = np.stack([picture() for _ in range(3000)])
    labels = np.arange(3000) % 3
    found = []
    for count in (2000, 1000):
        (images_train, images_test), (labels_train, labels_test) = (
            np.split(each, [count]) for each in (images, labels)
        )
        parts = {
            "x_train": images_train,
            "y_train": labels_train,
            "x_test": images_test,
            "y_test": labels_test,
        }
        np.savez(tmp_path / "own.npz", **parts)
        found.append(opened(tmp_path / "own.npz", tmp_path))
    assert [data.train_examples for data in found] == [2000, 1000]
    assert found[0].fingerprint != found[1].fingerprint


def test_a_corrupt_record_is_named(tmp_path):
    for split in ("train", "test"):
        write_records(tmp_path / "r" / f"{split}.tfrecord", [example(picture(), k % 3) for k in range(6)])
    path = tmp_path / "r" / "train.tfrecord"
    raw = bytearray(path.read_bytes())
    raw[len(raw) * 7 // 12] ^= 255  # within record 3
    path.write_bytes(raw)
    (tmp_path / "r" / "labels.txt").write_text("a\nb\nc\n")
    assert refused(tmp_path / "r", tmp_path).startswith(f"{path}: record 3: cannot be read: corrupted record")
    (tmp_path / "r" / "labels.txt").unlink()
    assert refused(tmp_path / "r", tmp_path).startswith(f"{path}: record 3: cannot be read: corrupted record")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (example(b"no image", 0), "record 2: cannot be read: "),
        (example(picture(), 7), "record 2: expected a label from 0 to 2, received 7"),
        (example(picture(7, 7), 1), "record 2: expected an image of 6 x 5 x 3, received 7 x 7 x 3"),
        (example(picture(), 1, "other"), "record 2: cannot be read: "),
        (b"no example", "record 2: cannot be read: "),
    ],
)
def test_a_record_that_is_wrong_is_named(tmp_path, record, message):
    good = [example(picture(), k) for k in range(2)]
    write_records(tmp_path / "r" / "train.tfrecord", good)
    write_records(tmp_path / "r" / "test.tfrecord", [*good, record, *good])
    (tmp_path / "r" / "labels.txt").write_text("a\nb\nc\n")
    assert refused(tmp_path / "r", tmp_path).startswith(f"{tmp_path / 'r' / 'test.tfrecord'}: {message}")


def test_records_without_images_are_refused(tmp_path):
    for split in ("train", "test"):
        write_records(tmp_path / "r" / f"{split}.tfrecord", [example(picture(), 0, "photo", "kind")])
    message = refused(tmp_path / "r", tmp_path)
    assert "train.tfrecord: record 0: expected bytes named image or image/encoded" in message
    assert "kind (int64_list), photo (bytes_list)" in message


def test_records_for_training_alone_are_refused(tmp_path):
    write_records(tmp_path / "r" / "train.tfrecord", [example(picture(), 0)])
    assert "expected TFRecord files with 'train' and with 'test' in their names" in refused(
        tmp_path / "r", tmp_path
    )


def test_hidden_files_are_skipped_and_counted(folder, tmp_path, caplog):
    caplog.set_level("INFO", "tfdist")
    for name in (".DS_Store", "train/cat/Thumbs.db", "train/cat/.hidden.png", "test/dog/desktop.ini"):
        (folder / name).write_bytes(b"no image")
    data = opened(folder, tmp_path)
    assert (data.train_examples, data.test_examples) == (6, 4)
    assert f"{folder}: 4 hidden files are skipped, such as .DS_Store and Thumbs.db" in caplog.messages


def test_an_npz_file_is_resized(tmp_path):
    images = np.stack([picture() for _ in range(4)])
    labels = np.arange(4) % 2
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    assert opened(tmp_path / "a.npz", tmp_path, image_size=(12, 10)).image_shape == (12, 10, 3)


def test_a_bare_name_is_a_folder_of_the_current_one(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = opened("pets", tmp_path, data_dir=tmp_path / "nothing")
    assert data.classes == ("cat", "dog")
