"""Workers compare digests of their data, which are the same in all processes that make the same data."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.data import check_same_data  # noqa: E402  # after the check that TensorFlow is there


def branching(factor):
    """Return a data set whose function has branches, each a function of its own."""

    def chosen(number):
        return tf.cond(number > 1, lambda: number + 5, lambda: factor * number)

    return tf.data.Dataset.range(3).map(chosen)


def test_functions_in_another_order_are_the_same_data(monkeypatch):
    expected = check_same_data.digest_of(branching(7))
    definitions_of = check_same_data.definitions_of
    # TensorFlow hashes the names of functions, with another seed in each process.
    monkeypatch.setattr(
        check_same_data, "definitions_of", lambda dataset: reversed(list(definitions_of(dataset)))
    )
    assert check_same_data.digest_of(branching(7)) == expected
    assert check_same_data.digest_of(branching(8)) != expected


def permuted(seed):
    """Return rows in the order of a permutation, as Keras shuffles arrays."""
    tf.random.set_seed(seed)
    return tf.data.Dataset.range(1).map(lambda _: tf.random.shuffle(tf.range(9))).unbatch()


def chosen(seed):
    return tf.data.Dataset.range(9).filter(lambda x: tf.random.uniform([], seed=seed) < 0.5)


@pytest.mark.parametrize("make", [permuted, chosen])
def test_another_seed_of_a_function_is_other_data(make):
    assert check_same_data.digest_of(make(42)) == check_same_data.digest_of(make(42))
    assert check_same_data.digest_of(make(42)) != check_same_data.digest_of(make(43))
    tf.random.set_seed(None)
