"""Batches are noted by numbers that tell other examples and other orders apart, and rounding not."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.data.python_data_of_workers import BatchNotes, is_power_of_two, note_as_indexed  # noqa: E402

APART = 1e-3


def total(batches):
    notes = BatchNotes()
    read = list(notes.noting(tf.data.Dataset.from_generator(lambda: batches, output_signature=spec(batches))))
    assert len(read) == len(batches)
    return notes.total_of(len(batches))


def spec(batches):
    return tf.nest.map_structure(tf.type_spec_from_value, batches[0])


def pictures():
    return np.random.default_rng(1).integers(0, 256, (64, 32, 32, 3)).astype("uint8")


ROWS = {
    "numbers": np.random.default_rng(2).normal(3.0, 1.0, (8, 3)).astype("float32"),
    "labels": np.array([3, 1, 2, 0, 1, 7, 7, 5]),
    "large": pictures(),
    "truth": np.array([True, False, False, True, True, False, True, False]),
    "words": np.array(["a", "b", "c", "d", "e", "f", "g", "h"]),
    "complex": np.arange(8) * (1 + 2j),
    "with nan": np.array([np.nan, 1.0, 2.0, np.inf, 4.0, 5.0, 6.0, 7.0]),
}


@pytest.mark.parametrize("name", ROWS)
def test_another_order_has_another_total(name):
    rows = tf.constant(ROWS[name])
    order = np.random.default_rng(3).permutation(len(rows))

    assert total([rows]) == total([rows])
    assert abs(total([rows]) - total([tf.gather(rows, order)])) > APART
    assert np.isfinite(total([rows]))


def test_other_examples_in_a_later_batch_have_another_total():
    numbers = [tf.constant(ROWS["numbers"] * each) for each in (1.0, 2.0, 3.0)]
    others = [*numbers[:2], numbers[2] + 1.0]

    assert abs(total(numbers) - total(others)) > APART


def test_rounding_and_structure_do_not_matter():
    numbers, labels = tf.constant(ROWS["numbers"]), tf.constant(ROWS["labels"])
    rounded = tf.constant(ROWS["numbers"] * np.float32(1 + 1e-6) + np.float32(1e-6))

    assert total([(numbers, labels)]) == pytest.approx(total([(rounded, labels)]), abs=1e-5)
    assert total([{"x": numbers, "y": labels}]) == total([(numbers, labels)])


def test_sparse_and_ragged_batches_are_noted():
    sparse = tf.sparse.from_dense([[0, 1, 0], [2, 0, 0]])
    other = tf.sparse.from_dense([[2, 0, 0], [0, 1, 0]])
    ragged, swapped = tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[2, 3], [1]])

    assert abs(total([sparse]) - total([other])) > APART
    assert abs(total([ragged]) - total([swapped])) > APART


def generated():
    return tf.data.Dataset.from_generator(lambda: range(9), output_signature=tf.TensorSpec((), tf.int64))


def test_what_a_generator_yields_is_noted_unless_it_is_changed_at_random():
    def python(dataset):
        return dataset.map(lambda x: tf.numpy_function(lambda x: x, [x], tf.int64))

    drawn = tf.Variable(1)
    assert BatchNotes.of(generated().map(lambda x: x + 1).batch(2)).decide_order
    assert BatchNotes.of(tf.data.Dataset.range(9).batch(2)) is None
    assert BatchNotes.of(python(tf.data.Dataset.range(9))) is None
    assert BatchNotes.of(python(generated())) is None
    assert BatchNotes.of(generated().map(lambda x: x + tf.random.uniform((), 0, 2, tf.int64))) is None
    assert BatchNotes.of(generated().map(lambda x: (x, drawn.assign_add(1)))) is None


def test_what_is_read_by_index_may_be_changed_at_random():
    dataset = generated()
    note_as_indexed(dataset)

    assert not BatchNotes.of(dataset.batch(2)).decide_order


def test_each_pass_is_noted_from_its_beginning():
    notes = BatchNotes()
    data = notes.noting(tf.data.Dataset.range(12).batch(3))
    assert notes.total_of(1) is None
    list(data)
    first = [notes.total_of(count) for count in range(6)]
    assert [number for number, one in enumerate(first) if one is None] == [0, 5]
    assert len({*first}) == 5
    next(iter(data))
    assert notes.total_of(1) == first[1]


def test_notes_of_a_pass_that_is_no_longer_read_are_left_out():
    notes = BatchNotes()
    notes._note(0, 0.0, 0.5)
    notes._note(1, 0.5, 0.75)  # of the last pass: another begins here
    notes._note(0, 0.0, 0.125)
    notes._note(2, 0.75, 1.0)
    notes._note(1, 0.5, 0.75)

    assert notes.total_of(1) == 0.125
    assert notes.total_of(2) is None
    notes._note(1, 0.125, 0.25)
    assert notes.total_of(2) == 0.25


def test_the_last_of_many_batches_are_kept():
    notes = BatchNotes()
    for number in range(3000):
        notes._note(number, float(number), number + 1.0)

    assert notes.total_of(2990) == 2990.0
    assert notes.total_of(3) is None


def test_powers_of_two():
    assert [number for number in range(1, 40) if is_power_of_two(number)] == [1, 2, 4, 8, 16, 32]
