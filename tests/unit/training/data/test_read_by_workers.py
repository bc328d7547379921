"""Each asynchronous worker makes its own part of the data, or one line says why it cannot."""

import types

import numpy as np
import pytest

from tfdist.cluster.config import Task
from tfdist.errors import DataError

tf = pytest.importorskip("tensorflow")

from tfdist.training.data import check_caches, inspect_dataset, read_by_workers  # noqa: E402  # after the check that TensorFlow is there

ONE_DEVICE = types.SimpleNamespace(num_replicas_in_sync=1)
WORKERS = 3


def rows_of(context, rows=6):
    examples = np.arange(rows * 1000).reshape(rows, 1000)
    own = examples[context.input_pipeline_id :: context.num_input_pipelines]
    return tf.data.Dataset.from_tensor_slices(own.astype("int64")).batch(1)


def read(graphs, part):
    """Return the first number of each batch that a worker reads of a part."""
    rest = graphs.rest(graphs.make(part), tf.constant(part, tf.int64), tf.constant(0, tf.int64))
    return [int(batch[0, 0]) for batch in rest]


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_each_worker_makes_its_part_of_arrays(most, monkeypatch):
    monkeypatch.setattr(read_by_workers, "_MOST_BYTES_IN_A_GRAPH", most)
    graphs = read_by_workers._of_function(rows_of, ONE_DEVICE, WORKERS)

    assert [read(graphs, part) for part in range(WORKERS)] == [[0, 3000], [1000, 4000], [2000, 5000]]


def test_the_graph_that_all_workers_get_has_no_large_arrays():
    made = []

    def make(context):
        made.append(tf.inside_function())
        return rows_of(context, rows=600)

    graphs = read_by_workers._of_function(make, ONE_DEVICE, WORKERS)

    assert made == [False, True, False, False]  # in a graph only once, to see what it contains
    assert read(graphs, 2)[:2] == [2000, 5000]


def test_files_that_a_function_maps_are_read_by_the_workers(monkeypatch, tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(bytes(3 << 20))

    def make(context):
        numbers = tf.raw_ops.ImmutableConst(dtype=tf.uint8, shape=[3 << 20], memory_region_name=str(path))
        own = tf.data.Dataset.from_tensor_slices(tf.reshape(numbers, (3, 1 << 20)))
        return own.shard(context.num_input_pipelines, context.input_pipeline_id).batch(1)

    monkeypatch.setattr(read_by_workers, "serialized", lambda _: pytest.fail("the chief sends the numbers"))
    graphs = read_by_workers._of_function(make, ONE_DEVICE, WORKERS)
    assert [read(graphs, part) for part in range(WORKERS)] == [[0]] * WORKERS


def test_parts_beyond_what_tensorflow_sends_are_refused(monkeypatch):
    monkeypatch.setattr(inspect_dataset, "MOST_BYTES", 10_000)
    monkeypatch.setattr(read_by_workers, "_MOST_BYTES_IN_A_GRAPH", 10_000)
    with pytest.raises(DataError, match="more than 2 GB of arrays"):
        read_by_workers._of_function(rows_of, ONE_DEVICE, WORKERS)


def test_python_code_in_a_part_is_refused():
    def make(context):
        return rows_of(context).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64))

    with pytest.raises(DataError, match="contains Python code") as raised:
        read_by_workers._of_function(make, ONE_DEVICE, WORKERS)
    assert "\n" not in str(raised.value)


def test_replica_batches_are_those_of_the_devices_of_a_worker():
    contexts = read_by_workers._contexts(types.SimpleNamespace(num_replicas_in_sync=2), WORKERS)

    assert [context.get_per_replica_batch_size(8) for context in contexts] == [4] * WORKERS
    assert [context.input_pipeline_id for context in contexts] == list(range(WORKERS))


def test_workers_of_one_machine_do_not_fill_one_cache_file(monkeypatch, tmp_path):
    hosts = {Task("worker", 0): "a:1", Task("worker", 1): "a:2", Task("ps", 0): "b:1"}
    monkeypatch.setattr(check_caches, "addresses_of", lambda strategy: hosts)
    dataset = tf.data.Dataset.range(4).cache(str(tmp_path / "cache")).batch(2)

    with pytest.raises(DataError, match="is cached in the file"):
        check_caches.check_caches(dataset, ONE_DEVICE)
    check_caches.check_caches(tf.data.Dataset.range(4).cache(), ONE_DEVICE)
    assert len(list(dataset)) == 2  # which completes the file
    check_caches.check_caches(dataset, ONE_DEVICE)
    hosts[Task("worker", 1)] = "b:2"
    check_caches.check_caches(tf.data.Dataset.range(4).cache(str(tmp_path / "other")), ONE_DEVICE)
