"""Data sets that workers could not each run for itself are told from those that they can."""

import functools

import pytest

from tfdist.errors import DataError

tf = pytest.importorskip("tensorflow")

from tfdist.training.data.inspect_dataset import chain_of, check_order, is_too_large_to_send  # noqa: E402  # after the check that TensorFlow is there

numbers = tf.data.Dataset.range
ANY_ORDER = tf.data.Options()
ANY_ORDER.deterministic = False


@pytest.fixture(autouse=True)
def _without_a_seed():
    tf.random.set_seed(None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(5).batch(2),
        lambda: numbers(5).shuffle(3, seed=0).batch(2).prefetch(1),
        lambda: numbers(3).interleave(lambda _: numbers(4).shuffle(2, seed=3), num_parallel_calls=2),
        lambda: numbers(3).map(lambda x: tf.random.uniform([]), num_parallel_calls=2),
        lambda: tf.data.Dataset.sample_from_datasets([numbers(3), numbers(4)], seed=1),
        lambda: numbers(9).filter(lambda x: tf.random.uniform([], seed=3) < 0.3),
        lambda: numbers(9).rejection_resample(lambda x: x % 2, [0.5, 0.5], [0.6, 0.4], seed=1).batch(2),
        lambda: tf.data.Dataset.list_files(__file__, shuffle=False),
        lambda: tf.data.Dataset.from_generator(
            lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)
        ),
    ],
)
def test_takes_what_has_one_order(make):
    check_order(make())


def test_takes_what_is_shuffled_by_a_seed_set_before():
    tf.random.set_seed(1)
    check_order(numbers(5).shuffle(3).batch(2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: numbers(5).shuffle(3).batch(2), "shuffled without a seed"),
        (lambda: tf.data.Dataset.zip((numbers(5), numbers(5).shuffle(3))), "shuffled without a seed"),
        (lambda: numbers(3).flat_map(lambda _: numbers(4).shuffle(2)), "shuffled without a seed"),
        (lambda: numbers(3).flat_map(lambda _: numbers(4).flat_map(lambda _: numbers(3).shuffle(3))), "shuffled without a seed"),
        (lambda: tf.data.Dataset.sample_from_datasets([numbers(3), numbers(4)]), "shuffled without a seed"),
        (lambda: tf.data.Dataset.list_files(__file__), "shuffled without a seed"),
        (lambda: numbers(3).map(lambda x: x, num_parallel_calls=2, deterministic=False).batch(1), "no fixed order"),
        (lambda: numbers(3).with_options(ANY_ORDER).batch(1), "no fixed order"),
        (lambda: numbers(9).filter(lambda x: tf.random.uniform([]) < 0.3), "chooses examples by random numbers"),
        (lambda: numbers(9).rejection_resample(lambda x: x % 2, [0.5, 0.5], [0.6, 0.4]).batch(2), "without a seed"),
    ],
)  # fmt: skip
def test_refuses_what_each_worker_would_find_in_another_order(make, words):
    with pytest.raises(DataError, match=words):
        check_order(make())


def test_data_of_many_sources_and_of_shared_ones_are_walked_once():
    many = functools.reduce(lambda left, _: left.concatenate(numbers(1)), range(1001), numbers(1))
    assert len(list(chain_of(many))) == 2003
    shared = functools.reduce(lambda both, _: both.concatenate(both), range(40), numbers(1))
    assert len(list(chain_of(shared))) == 41


def test_arrays_may_be_too_large_to_send():
    # Nothing is written to these pages, so that the system need not find them.
    large = tf.raw_ops.Empty(shape=[2**29, 4], dtype=tf.uint8)
    assert not is_too_large_to_send(tf.data.Dataset.from_tensors(large[:10]))
    for dataset in (tf.data.Dataset.from_tensors(large), numbers(3).map(lambda index: large[index])):
        assert is_too_large_to_send(dataset.batch(1))
