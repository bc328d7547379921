"""What `tfdist estimate` computes from the sizes of a model, by hand-made sizes and without TensorFlow."""

import msgspec
import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.estimate_memory_and_traffic import estimate_tasks, milliseconds
from tfdist.trainer.config import Config
from tfdist.trainer.model_and_replica_sizes import ModelSizes, Replicas, VariableSizes

KERNEL = VariableSizes("kernel", (1000, 250), 1_000_000, slots=2_000_000)
BIAS = VariableSizes("bias", (250,), 1000, slots=2000)
MEAN = VariableSizes("moving_mean", (250,), 1000, is_trained=False)
TABLE = VariableSizes("table", (10_000, 100), 4_000_000, slots=8_000_000, rows_per_example=5)
TRAINED = 1_001_000


def _sizes(*variables, **more):
    parts = {"kept": 500, "largest": 100, "example": 10, "train_data": 7000, "test_data": 3000}
    return ModelSizes(variables, **{**parts, "private": 10**8, "libraries": 10**9, **more})


def _config(name, **sections):
    return msgspec.convert({"data": {"batch_size": 64}, "strategy": {"name": name}, **sections}, Config)


def _estimates(name, sizes, *, workers=2, ps=0, devices=1, **sections):
    config = _config(name, **sections)
    cluster = ClusterConfig.local(workers=workers, ps=ps) if workers else ClusterConfig()
    replicas = Replicas.of(config, cluster, devices)
    return {each.task: each for each in estimate_tasks(config, cluster, sizes, replicas)}


def test_a_process_alone_sends_nothing_and_holds_all():
    [alone] = _estimates("one_device", _sizes(KERNEL, BIAS), workers=0).values()
    assert (alone.task, alone.sent, alone.data) == ("process", 0, 10_000)
    parts = {name: size for name, size in alone.memory.items() if name != "TensorFlow"}
    assert parts == {
        "variables": TRAINED,
        "optimizer": 2 * TRAINED,
        "gradients": TRAINED,
        "activations": 700,
    }
    assert alone.total == sum(alone.memory.values()) > 10**8 + 4 * TRAINED


def test_mirrored_holds_all_on_each_device():
    [alone] = _estimates("mirrored", _sizes(KERNEL), workers=0, devices=3).values()
    assert (alone.memory["variables"], alone.memory["optimizer"]) == (3 * KERNEL.value, 3 * KERNEL.slots)


@pytest.mark.parametrize(("workers", "share"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75)])
def test_a_ring_sends_2_times_n_minus_1_over_n_of_the_gradients(workers, share):
    estimates = _estimates("multi_worker_mirrored", _sizes(KERNEL, BIAS, MEAN), workers=workers)
    assert {each.sent for each in estimates.values()} == {round(share * TRAINED)}


@pytest.mark.parametrize(("dtype", "part"), [("bfloat16", 1 / 2), ("float16", 1 / 2), ("int8", 260 / 1024)])
def test_compression_shrinks_what_is_sent_and_no_memory(dtype, part):
    whole = _estimates("multi_worker_mirrored", _sizes(KERNEL))["worker:0"]
    narrow = _estimates("multi_worker_mirrored", _sizes(KERNEL), communication={"dtype": dtype})["worker:0"]
    assert narrow.sent == round(part * whole.sent)
    assert narrow.memory == whole.memory


def test_parameter_servers_in_step_send_all_variables_to_each_worker():
    estimates = _estimates("parameter_server_sync", _sizes(KERNEL, BIAS), workers=4, ps=2)
    assert estimates["ps:0"].sent + estimates["ps:1"].sent == 4 * TRAINED
    assert {estimates[f"worker:{index}"].sent for index in range(4)} == {TRAINED}
    assert estimates["chief:0"].sent == 2 * 64 * 10
    assert estimates["ps:0"].memory["variables"] == KERNEL.value
    assert estimates["ps:0"].memory["messages"] == 4 * estimates["ps:0"].memory["gradients"]
    assert "optimizer" not in estimates["worker:0"].memory


def test_a_step_of_asynchronous_workers_is_one_workers():
    estimates = _estimates("parameter_server", _sizes(KERNEL, BIAS), workers=4, ps=1)
    assert estimates["ps:0"].sent == TRAINED
    assert sum(estimates[f"worker:{index}"].sent for index in range(4)) == pytest.approx(TRAINED, abs=4)
    assert estimates["chief:0"].sent == 0


def test_variables_that_are_not_trained_return_as_they_came():
    estimates = _estimates("parameter_server_sync", _sizes(KERNEL, MEAN), workers=2, ps=1)
    assert estimates["ps:0"].sent == 2 * (KERNEL.value + MEAN.value)
    assert estimates["worker:0"].memory["gradients"] == KERNEL.value


def test_of_a_table_only_the_rows_of_a_batch_travel():
    row, rows = 400, 5 * 32  # of the 32 examples of each of two workers
    mirrored = _estimates("multi_worker_mirrored", _sizes(TABLE))["worker:0"]
    assert mirrored.sent == rows * (row + 8)
    estimates = _estimates("parameter_server_sync", _sizes(TABLE), ps=1)
    assert estimates["ps:0"].sent == 2 * rows * row
    assert estimates["worker:0"].sent == rows * (row + 8)
    assert estimates["ps:0"].memory["variables"] == TABLE.value
    small = VariableSizes("small", (20, 100), 8000, rows_per_example=5)
    assert small.bytes_read(32) == 8000  # which is all of it


def test_large_variables_are_cut_into_shards():
    sections = {"strategy": {"min_shard_bytes": 300_000}}
    estimates = _estimates("parameter_server", _sizes(KERNEL, BIAS), ps=3, **sections)
    held = [estimates[f"ps:{index}"].memory["variables"] for index in range(3)]
    assert sum(held) == TRAINED
    assert max(held) == 334_000 + BIAS.value


def test_an_evaluator_sends_nothing():
    config = _config("multi_worker_mirrored")
    cluster = ClusterConfig(worker=["a:1", "b:1"], evaluator=["c:1"])
    estimates = estimate_tasks(config, cluster, _sizes(KERNEL), Replicas.of(config, cluster))
    [evaluator] = [each for each in estimates if each.task == "evaluator:0"]
    assert (evaluator.sent, evaluator.memory["variables"]) == (0, KERNEL.value)
    assert estimates[0].sent == KERNEL.value  # a ring of two: the evaluator is not part of it


def test_on_several_machines_no_memory_is_shared():
    config = _config("parameter_server")
    cluster = ClusterConfig(chief=["a:1"], worker=["b:1", "c:1"], ps=["d:1"])
    estimates = estimate_tasks(config, cluster, _sizes(KERNEL), Replicas.of(config, cluster))
    server = next(each for each in estimates if each.task == "ps:0")
    assert server.memory["messages"] == server.memory["gradients"] == 2 * KERNEL.value


def test_replicas_share_a_batch_but_asynchronous_workers_do_not():
    cluster, batch = ClusterConfig.local(workers=4, ps=1), {"batch_size": 65}
    assert Replicas.of(_config("parameter_server", data=batch), cluster).examples == 65
    assert Replicas.of(_config("parameter_server_sync", data=batch), cluster).examples == 17
    assert Replicas.of(_config("parameter_server_sync", data=batch), cluster, devices=2).examples == 9
    assert Replicas.of(_config("auto", data=batch), ClusterConfig(), devices=2) == Replicas("mirrored", 2, 33)


def test_a_link_takes_eight_bits_for_a_byte():
    assert milliseconds(125_000, 1) == pytest.approx(1.0)
    assert milliseconds(125_000, 10) == pytest.approx(0.1)
