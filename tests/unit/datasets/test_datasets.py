"""Check what open_data gives: order, shards, substitutes, and preparation by several processes at once."""

import itertools
import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from commands import SECONDS
from tfdist.datasets.augmentation import AUGMENTATIONS, draws
from tfdist.datasets.disk_cache import Contents, prepare
from tfdist.datasets.open_data import open_data
from tfdist.datasets.pipeline import train_parts
from tfdist.errors import ConfigError, DataError, StorageError

TRAIN, TEST = 103, 41  # primes: no batch size divides them


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def digits(cache):
    return open_data("digits", examples=(TRAIN, TEST), cache_dir=cache)


def taken(dataset, steps):
    batches = list(dataset.take(steps).as_numpy_iterator())
    return [images for images, _ in batches], [labels for _, labels in batches]


def rows(data, images):
    """Find out which training examples these are."""
    known = {image.tobytes(): row for row, image in enumerate(data.split("train").arrays()[0])}
    assert len(known) == data.train_examples
    return [known[image.tobytes()] for image in np.concatenate(images)]


def test_describes_itself(digits):
    assert digits.image_shape == (28, 28, 1)
    assert digits.classes == tuple("0123456789")
    assert (digits.train_examples, digits.test_examples) == (TRAIN, TEST)
    assert digits.substitute_for is None
    images, labels = digits.train(8).element_spec
    assert (images.shape, images.dtype.name) == ((8, 28, 28, 1), "uint8")
    assert (labels.shape, labels.dtype.name) == ((8,), "int32")


@pytest.mark.parametrize(("batch", "shards"), [(1, 1), (7, 1), (5, 3), (64, 2), (150, 1)])
def test_every_example_comes_once_in_every_epoch_over_all_shards(digits, batch, shards):
    steps = -(-3 * TRAIN // (batch * shards))
    parts = [taken(digits.train(batch, shard=(index, shards)), steps)[0] for index in range(shards)]
    order = rows(digits, [part[step] for step in range(steps) for part in parts])
    epochs = [order[start : start + TRAIN] for start in range(0, 3 * TRAIN, TRAIN)]
    assert all(sorted(epoch) == list(range(TRAIN)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("augment", ["none", "shift", "shift_flip", "crop_flip"])
def test_shards_of_a_batch_are_the_batch_of_one_process(digits, augment):
    whole, whole_labels = taken(digits.train(30, seed=5, augment=augment), 7)
    for index in range(3):
        part, labels = taken(digits.train(10, shard=(index, 3), seed=5, augment=augment), 7)
        for step in range(7):
            np.testing.assert_array_equal(part[step], whole[step][10 * index : 10 * index + 10])
            np.testing.assert_array_equal(labels[step], whole_labels[step][10 * index : 10 * index + 10])


@pytest.mark.parametrize(("augment", "most"), [("crop_flip", 4), ("shift_flip", 2)])
@pytest.mark.parametrize("shape", [(32, 32, 3), (9, 5, 2)])
def test_crops_reach_over_the_edges_as_into_mirrors(shape, augment, most):
    images = np.random.default_rng(0).integers(0, 256, (64, *shape)).astype(np.uint8)
    drawn = np.array(draws(tf.constant(0, tf.int64), 64, 3))
    drawn[:2, :3] = [[0, 0, 0], [0.999, 0.999, 0.999]]  # the corners
    padded = np.pad(images, [(0, 0), (most, most), (most, most), (0, 0)], mode="reflect")
    found = AUGMENTATIONS[augment](tf.constant(images), tf.constant(drawn)).numpy()
    for image, of_padded, (row, column, flip) in zip(found, padded, drawn[:, :3], strict=True):
        top, left = (int(each * np.float32(2 * most + 1)) for each in (row, column))
        expected = of_padded[top : top + shape[0], left : left + shape[1]]
        np.testing.assert_array_equal(image, expected[:, ::-1] if flip < 0.5 else expected)


@pytest.mark.parametrize("pipelines", [(1, 1, 1), (1,), (3,), (2, 1), (2, 2, 2)])
def test_parts_of_any_sizes_are_the_batch_of_one_process(digits, pipelines):
    """The replicas of each pipeline take their parts by turns, as evenly as 32 examples can be shared."""
    replicas, whole = sum(pipelines), taken(digits.train(32, seed=5, augment="shift"), 6)
    edges = [32 * replica // replicas for replica in range(replicas + 1)]
    found, begun = [[] for _ in range(4)], 0
    for count in pipelines:
        parts = list(itertools.pairwise(edges))[begun : begun + count]
        begun += count
        dataset = train_parts(digits.split("train"), parts, of=32, seed=5, augment="shift", skip_steps=2)
        assert (dataset.element_spec[0].shape[0] is None) == (len({b - a for a, b in parts}) > 1)
        images, labels = taken(dataset, 4 * count)
        for step in range(4):
            found[step] += zip(images[step * count :][:count], labels[step * count :][:count], strict=True)
    for step in range(4):
        images, labels = (np.concatenate(each) for each in zip(*found[step], strict=True))
        np.testing.assert_array_equal(images, whole[0][step + 2])
        np.testing.assert_array_equal(labels, whole[1][step + 2])


@pytest.mark.parametrize("skip", [1, 5, 13, 400])
def test_a_skipped_step_is_the_step_that_would_have_come(digits, skip):
    expected = taken(digits.train(20, seed=3, augment="crop_flip").skip(skip), 3)
    received = taken(digits.train(20, seed=3, augment="crop_flip", skip_steps=skip), 3)
    np.testing.assert_array_equal(received[0], expected[0])
    np.testing.assert_array_equal(received[1], expected[1])


@pytest.mark.parametrize("parts", [[(0, 20)], [(0, 7), (7, 20)]])
def test_what_is_left_out_is_left_out_and_nothing_else(digits, parts):
    whole, whole_labels = taken(digits.train(20, seed=3, augment="crop_flip"), 9)
    dataset = train_parts(
        digits.split("train"),
        parts,
        of=20,
        seed=3,
        augment="crop_flip",
        skip_steps=2,
        without=[7, 1, 3, 4],
    )
    images, labels = (np.concatenate(each) for each in taken(dataset, 4 * len(parts)))
    np.testing.assert_array_equal(images, np.concatenate([whole[step] for step in (2, 5, 6, 8)]))
    np.testing.assert_array_equal(labels, np.concatenate([whole_labels[step] for step in (2, 5, 6, 8)]))


def test_the_seed_decides_the_order(digits):
    first, again, other = (rows(digits, taken(digits.train(TRAIN, seed=seed), 1)[0]) for seed in (1, 1, 2))
    assert first == again != other


def test_orders_of_epochs_are_unrelated():
    from tfdist.datasets.pipeline import _shuffled

    count = 60_000
    epochs = [
        _shuffled(tf.range(count, dtype=tf.int64) + epoch * count, count, 0).numpy() for epoch in range(4)
    ]
    for one, other in itertools.pairwise(epochs):
        assert sorted(one) == list(range(count))
        # 5 deviations; TensorFlow's own number of rounds gives 0.89 here.
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(count)


def test_the_order_is_the_same_with_every_tensorflow():
    from tfdist.datasets.pipeline import _shuffled

    assert _shuffled(tf.range(12, dtype=tf.int64), 10, 7).numpy().tolist() == ORDER


ORDER = [3, 2, 5, 9, 0, 6, 1, 4, 7, 8, 0, 5]


@pytest.mark.parametrize(("batch", "shards"), [(10, 1), (10, 3), (41, 1), (64, 2)])
def test_every_test_example_comes_once(digits, batch, shards):
    parts = [list(digits.test(batch, shard=(index, shards)).as_numpy_iterator()) for index in range(shards)]
    labels = np.concatenate([labels for part in parts for _, labels in part])
    assert sorted(labels) == sorted(digits.split("test").arrays()[1])
    if shards == 1:
        np.testing.assert_array_equal(labels, digits.split("test").arrays()[1])


def test_crops_flips_and_changes_are_as_the_tutorial_had_them(cache):
    data = open_data("shapes", examples=(64, 8), cache_dir=cache)
    (images,), _ = taken(data.train(64, augment="cifar10_2016"), 1)
    assert images.shape == (64, 24, 24, 3)
    assert images.dtype == np.float32
    (plain,), _ = taken(data.train(64), 1)
    windows, mirrored = set(), 0
    for changed, image in zip(images, plain, strict=True):
        place, flip = where_from(changed, image.astype(np.float32))
        windows.add(place)
        mirrored += flip
    assert len(windows) > 30
    assert 16 <= mirrored <= 48
    assert {top for top, _ in windows} <= set(range(9)) >= {left for _, left in windows}


def where_from(changed, image):
    """Find the window of an image that correlates fully with a crop, in each channel."""
    for flip in (False, True):
        crop = changed[:, ::-1] if flip else changed
        for top in range(9):
            for left in range(9):
                window = image[top : top + 24, left : left + 24]
                gain = crop.std() / window.std()
                means = window.mean((0, 1)), crop.mean((0, 1))
                slope = ((crop - means[1]) * (window - means[0])).sum() / ((window - means[0]) ** 2).sum()
                if np.abs(crop - means[1] - slope * (window - means[0])).max() < 0.05 * gain + 0.05:
                    assert 0.19 < slope < 1.81
                    assert np.abs(means[1] - means[0]).max() < 63.1
                    return (top, left), flip
    raise AssertionError("not a window of the image")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch: expected a number of examples from 1, received 0"),
        ({"batch": 8, "shard": (2, 2)}, "received (2, 2)"),
        ({"batch": 8, "seed": -1}, "seed: expected a whole number from 0, received -1"),
        ({"batch": 8, "augment": "shfit"}, "there is no 'shfit'. Did you mean 'shift'?"),
        ({"batch": 8, "skip_steps": -1}, "skip_steps"),
        ({"batch": 8, "augment": "cifar10_2016"}, None),
    ],
)
def test_refuses_what_makes_no_sense(digits, arguments, message):
    if message is None:
        assert digits.train(**arguments).element_spec[0].shape == (8, 24, 24, 1)
        return
    with pytest.raises(ConfigError) as caught:
        digits.train(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnist", "if_unavailable": "digit"}, "if_unavailable: there is no 'digit'. Did you mean"),
        ({"name": "mnist", "examples": (1, 1)}, "examples: can be chosen only for digits and shapes"),
        ({"name": "digits", "examples": (0, 1)}, "examples: expected two numbers from 1"),
        ({"name": "digits", "image_size": (2, 2)}, "image_size: cannot be chosen for digits"),
        ({"name": "digits", "seed": -4}, "seed: expected a whole number from 0"),
        (
            {"name": "mnist", "data_dir": "gs://tfds-data"},
            "data_dir: expected a path of this machine, received 'gs://tfds-data'",
        ),
        ({"name": ""}, "data set: has no name, but ''. Write a name, such as mnist, or a path"),
        ({"name": "..."}, "data set: has no name, but '...'"),
        ({"name": "s3://bucket/x.npz"}, "s3://bucket/x.npz: TensorFlow 2."),
        ({"name": "gs:///images"}, "data set: expected an address such as gs://bucket/folder, received"),
    ],
)
def test_refuses_settings_that_say_nothing(cache, arguments, message):
    with pytest.raises(ConfigError) as caught:
        open_data(cache_dir=cache, **arguments)
    assert message in str(caught.value)


def test_opening_again_draws_nothing_and_loads_no_tensorflow(digits, cache):
    code = (
        "import sys; from tfdist.datasets import open_data; "
        f"print(open_data('digits', examples=({TRAIN}, {TEST}), cache_dir={str(cache)!r}).fingerprint); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    before = digits.folder.stat().st_mtime_ns
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == digits.fingerprint
    assert digits.folder.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "gone", "no about.json"])
def test_what_is_damaged_is_prepared_again(tmp_path, damage, caplog):
    whole = open_data("digits", examples=(20, 10), cache_dir=tmp_path)
    images = whole.folder / "train.images"
    if damage == "cut":
        os.truncate(images, 100)
    elif damage == "gone":
        images.unlink()
    else:
        (whole.folder / "about.json").unlink()
    again = open_data("digits", examples=(20, 10), cache_dir=tmp_path)
    assert again == whole
    assert images.stat().st_size == 20 * 28 * 28
    if damage == "cut":
        assert "train.images: expected 15680 bytes, found 100; preparing it again" in caplog.text


def test_a_failed_preparation_leaves_nothing(tmp_path):
    def broken():
        yield np.zeros((4, 2, 2, 1), np.uint8), np.zeros(4, np.int32)
        raise DataError("record 4", "is broken")

    contents = Contents((2, 2, 1), ("a", "b"), broken(), iter(()))
    with pytest.raises(DataError, match="record 4: is broken"):
        prepare("bad", [], lambda: contents, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["by-request"]


def test_the_same_contents_are_kept_once(tmp_path):
    def contents():
        batch = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1), np.arange(4, dtype=np.int32)
        return Contents((2, 2, 1), tuple("abcd"), [batch], [batch])

    one, other = (prepare("same", request, contents, tmp_path) for request in ("here", "there"))
    assert one == other
    assert len(list(tmp_path.glob("same-*"))) == 1


PREPARE = """
import logging, sys, time
from pathlib import Path
import numpy as np
from tfdist.datasets.disk_cache import Contents, prepare

folder = Path(sys.argv[1])

def batches():
    with (folder / "reads").open("a") as file:
        print("read", file=file)
    for number in range(4):
        while number and not (folder / "may_end").exists():
            time.sleep(0.02)
        yield np.zeros((1000, 2, 2, 1), np.uint8), np.zeros(1000, np.int32)

logging.basicConfig(level=logging.INFO)
print("ready", flush=True)
sys.stdin.readline()
print(prepare("slow", [], lambda: Contents((2, 2, 1), ("a",), batches(), [
    (np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int32))]), folder).train_examples)
"""


@pytest.fixture
def start_preparing(tmp_path):
    """Return a function that starts a process, and waits until it is ready; all are killed after the test."""
    processes = []

    def start(log=subprocess.DEVNULL):
        command, pipe = [sys.executable, "-c", PREPARE, str(tmp_path)], subprocess.PIPE
        processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True))
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def begin(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_process_prepares_and_the_others_wait(tmp_path, start_preparing):
    path = tmp_path / "log"
    with path.open("a") as log:  # each line is written whole
        processes = [start_preparing(log) for _ in range(4)]
    for process in processes:
        begin(process)
    until(lambda: len(re.findall("is being prepared.*waiting for it", path.read_text())) == 3)
    (tmp_path / "may_end").touch()
    assert [process.communicate(timeout=SECONDS)[0].strip() for process in processes] == ["4000"] * 4
    assert (tmp_path / "reads").read_text() == "read\n"


def test_what_a_killed_process_left_is_not_taken_for_whole(tmp_path, start_preparing):
    killed = start_preparing()
    begin(killed)
    until(lambda: list(tmp_path.glob(".slow-*.partial/train.images")))
    killed.kill()
    killed.wait()
    (tmp_path / "may_end").touch()
    out, _ = start_preparing().communicate("go\n", timeout=SECONDS)
    assert out.strip() == "4000"
    assert not list(tmp_path.glob(".slow-*.partial"))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        open_data("digits", examples=(1, 1), cache_dir=tmp_path / "file" / "cache")
    assert "cannot be written" in str(caught.value)
    assert "TFDIST_CACHE_DIR" in str(caught.value)


def test_about_is_plain(digits):
    about = json.loads((digits.folder / "about.json").read_text())
    assert about["classes"] == list("0123456789")
    assert about["fingerprint"] == digits.fingerprint


def test_what_is_sharded_is_not_sharded_again(digits):
    policies = tf.data.experimental.AutoShardPolicy
    for shard, policy in (((0, 1), policies.AUTO), ((1, 2), policies.OFF)):
        for dataset in (digits.train(4, shard=shard), digits.test(4, shard=shard)):
            assert dataset.options().experimental_distribute.auto_shard_policy == policy


def test_the_graph_holds_no_data(digits):
    # As a parameter-server worker gets it: traced, with the files' paths in it and not their contents.
    traced = tf.function(lambda: tf.data.experimental.to_variant(digits.train(4, augment="crop_flip")))
    graph = traced.get_concrete_function().graph.as_graph_def()
    assert graph.ByteSize() < (digits.folder / "train.images").stat().st_size / 2
    assert str(digits.folder) in str(graph)
