"""Sparse gradients keep the slices that they have in one process."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.replicas.empty_replicas import if_any  # noqa: E402
from tfdist.training.replicas.sparse_gradients import (  # noqa: E402
    Addend,
    addends,
    dense_where_rows_are_shared,
    have_shared_rows,
    have_unique_rows,
    slices_of,
    summed,
    with_replicas_added_up,
    with_rows_summed,
)

CONSTANT = tf.constant([0, 1, 2])
VARIABLE = tf.Variable([0, 1, 1])
SHARED = {
    "a range": lambda x: tf.range(3),
    "a range of a length": lambda x: tf.range(tf.shape(x)[1]),
    "a range of the last length": lambda x: tf.range(start=0, limit=tf.shape(x)[-1], delta=1),
    "a constant": lambda x: CONSTANT,
}
REPEATED = {
    "computed": lambda x: tf.where(tf.range(3) < 1, tf.range(3) + 1, tf.cast(tf.range(3), tf.int32)),
    "a constant": lambda x: tf.constant([0, 1, 1]),
    "a variable": lambda x: VARIABLE.read_value(),
}
OWN = {
    "the examples": lambda x: x,
    "the number of examples": lambda x: tf.range(tf.shape(x)[0]),
    "a part of the shape": lambda x: tf.range(tf.reduce_prod(tf.shape(x)[0:])),
    "the number of values": lambda x: tf.range(tf.size(x)),
    "repeated": lambda x: tf.tile(tf.range(3)[tf.newaxis], [2, 1]),
    "drawn": lambda x: tf.random.uniform([3], maxval=3, dtype=tf.int32),
}


def _gradient_kind(rows, *, in_branch, are_shared=None):
    table, kinds = tf.Variable(tf.ones([20, 2])), []

    def compute(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows(x)))
        own = tape.gradient(loss, table)
        assert are_shared is None or have_shared_rows([own]) == are_shared
        [gradient] = dense_where_rows_are_shared([own], are_added_up=False)
        kinds.append(type(gradient))
        return tf.convert_to_tensor(gradient)

    def step(x):
        return (
            tf.cond(tf.shape(x)[0] > 0, lambda: compute(x), lambda: tf.zeros([20, 2]))
            if in_branch
            else compute(x)
        )

    found = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    x = tf.constant([[0, 1, 2]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, rows(x)))
    return kinds[0], found(x), tf.convert_to_tensor(tape.gradient(loss, table))


@pytest.mark.parametrize("in_branch", [False, True])
@pytest.mark.parametrize("rows", SHARED)
def test_gradients_of_shared_rows_are_dense(rows, in_branch):
    kind, found, expected = _gradient_kind(SHARED[rows], in_branch=in_branch)

    assert issubclass(kind, tf.Tensor)
    assert (found == expected).numpy().all()


@pytest.mark.parametrize("in_branch", [False, True])
@pytest.mark.parametrize("rows", REPEATED)
def test_rows_that_all_replicas_have_several_times_keep_their_slices(rows, in_branch):
    kind, found, expected = _gradient_kind(REPEATED[rows], in_branch=in_branch, are_shared=[True])

    assert kind is tf.IndexedSlices
    assert (found == expected).numpy().all()


def test_slices_of_replicas_are_added_up_place_by_place():
    gradient = tf.IndexedSlices(
        tf.reshape(tf.range(12.0), [6, 2]), tf.constant([0, 1, 1] * 2), tf.constant([4, 2])
    )
    other = tf.ones([4, 2])
    found = with_replicas_added_up([gradient, other], [True, False], tf.constant(2.0, tf.float64))

    assert found[1] is other
    assert found[0].indices.numpy().tolist() == [0, 1, 1]
    assert found[0].values.numpy().tolist() == [[6, 8], [10, 12], [14, 16]]


@pytest.mark.parametrize("in_branch", [False, True])
@pytest.mark.parametrize("rows", OWN)
def test_gradients_of_other_rows_stay_sparse(rows, in_branch):
    kind, _, _ = _gradient_kind(OWN[rows], in_branch=in_branch)

    assert kind is tf.IndexedSlices


FIRST = {"one lookup": lambda table, x: tf.gather(table, x)}
TWICE = {"two lookups": lambda table, x: tf.gather(table, x) * tf.gather(table, x + 1)}


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("look_up", [*FIRST.values(), *TWICE.values()], ids=[*FIRST, *TWICE])
def test_two_losses_make_the_slices_of_their_sum(look_up, is_eager):
    table = tf.Variable(tf.random.stateless_normal([9, 2], [1, 2]))

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            rows = look_up(table, x)
            first, second = tf.reduce_sum(rows**2), tf.reduce_sum(rows**3)
            both = 2.0 * first + 0.5 * second
        of_first, of_second, expected = (tape.gradient(loss, table) for loss in (first, second, both))
        [first], [added] = addends([[of_first], [of_second]])
        found = summed([first, added], [tf.constant(2.0), tf.constant(0.5)])
        return isinstance(added, Addend), found.values, expected.values, found.indices, expected.indices

    step = step if is_eager else tf.function(step, autograph=False)
    is_addend, values, expected, indices, expected_indices = step(tf.constant([[3, 1], [3, 3]]))
    assert is_addend
    assert values.numpy() == pytest.approx(expected.numpy(), rel=1e-5)
    assert (indices == expected_indices).numpy().all()


def test_losses_of_different_lookups_keep_the_slices_of_both():
    table = tf.Variable(tf.ones([9, 2]))

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            first, second = tf.reduce_sum(tf.gather(table, x)), tf.reduce_sum(tf.gather(table, y))
        gradients = [[tape.gradient(loss, table)] for loss in (first, second)]
        [first], [second] = addends(gradients)
        found = summed([first, second], [tf.constant(1.0), tf.constant(2.0)])
        return found.indices, found.values

    indices, values = step(tf.constant([1, 2]), tf.constant([1, 4, 4]))
    assert indices.numpy().tolist() == [1, 2, 1, 4, 4]
    assert values.numpy()[:, 0].tolist() == [1, 1, 2, 2, 2]


def test_a_dense_gradient_and_a_sparse_one_make_a_dense_one():
    table = tf.Variable(tf.ones([3, 2]))
    with tf.GradientTape(persistent=True) as tape:
        first, second = tf.reduce_sum(table), tf.reduce_sum(tf.gather(table, [1, 1]))
    dense, sparse = tape.gradient(first, table), tape.gradient(second, table)
    for one, other, factors in ((dense, sparse, (1.0, 0.5)), (sparse, dense, (0.5, 1.0))):
        [first], [second] = addends([[one], [other]])
        found = summed([first, second], list(map(tf.constant, factors)))
        assert found.numpy().tolist() == [[1, 1], [2, 2], [1, 1]]
    [none], [only] = addends([[None], [dense]])
    factors = [tf.constant(2.0), tf.constant(3.0)]
    assert summed([none, only], factors).numpy()[0, 0] == 3
    assert summed([dense, None], factors).numpy()[0, 0] == 2
    assert summed([None, None], factors) is None
    assert addends([[], []]) == [[], []]


@pytest.mark.parametrize("is_eager", [False, True])
def test_rows_may_have_numbers_of_two_types(is_eager):
    table = tf.Variable(tf.ones([9, 2]))

    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_sum(tf.gather(table, rows)) for rows in (x, y)]
        [first], [second] = addends([[tape.gradient(loss, table)] for loss in losses])
        return tf.convert_to_tensor(summed([first, second], [tf.constant(1.0), tf.constant(2.0)]))

    step = step if is_eager else tf.function(step, autograph=False)
    found = step(tf.constant([1, 2]), tf.constant([1, 4], tf.int64))
    assert found[:5, 0].numpy().tolist() == [0, 3, 1, 0, 2]


def test_each_row_gets_the_sum_of_its_slices():
    values = tf.constant([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    sparse = tf.IndexedSlices(values, tf.constant([7, 3, 7]), tf.constant([9, 2]))
    dense = tf.ones([2])
    summed_rows, same, nothing = with_rows_summed([sparse, dense, None])

    assert (summed_rows.indices.numpy().tolist(), same is dense, nothing) == ([7, 3], True, None)
    assert summed_rows.values.numpy().tolist() == [[101.0, 202.0], [10.0, 20.0]]


def test_only_the_chosen_gradients_get_their_rows_summed():
    sparse = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([4, 4]), tf.constant([5, 1]))
    left, added_up = with_rows_summed([sparse, sparse], [False, True])

    assert left is sparse
    assert (added_up.indices.numpy().tolist(), added_up.values.numpy().tolist()) == ([4], [[2.0]])


@pytest.mark.parametrize("is_unique", [False, True])
def test_rows_of_sparse_inputs_are_unique(is_unique):
    table, found = tf.Variable(tf.ones([5, 2])), []

    @tf.function(autograph=False)
    def step(x, rows):
        with tf.GradientTape() as tape:
            looked_up = tf.nn.embedding_lookup_sparse(table, x, None, combiner="sum") if is_unique else None
            loss = tf.reduce_sum(tf.gather(table, rows) if looked_up is None else looked_up)
        found.extend(have_unique_rows([tape.gradient(loss, table), tf.ones([2]), None]))

    rows = tf.constant([3, 3, 0])
    step(tf.sparse.SparseTensor([[0, 0], [1, 0], [1, 1]], rows, [2, 2]), rows)

    assert found == [is_unique, False, False]


def test_a_replica_without_examples_has_no_slices_whatever_their_static_number():
    gradients = [tf.IndexedSlices(tf.ones([6, 2]), tf.range(6), tf.constant([9, 2])), Addend(tf.ones([6, 2]))]

    @tf.function(autograph=False)
    def rows_of(size):
        first, second = if_any(lambda: gradients, size, slices_of)
        return tf.shape(first.values)[0], tf.shape(first.indices)[0], tf.shape(second.values)[0]

    assert [int(count) for count in rows_of(tf.constant(0))] == [0, 0, 0]
    assert [int(count) for count in rows_of(tf.constant(3))] == [6, 6, 6]
