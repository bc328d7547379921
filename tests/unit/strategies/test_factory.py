"""Strategies are refused, with a remedy, where they could not be what they are called."""

import re
import subprocess
import sys

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from tensorflow.python.distribute.collective_all_reduce_strategy import (  # noqa: E402
    CollectiveAllReduceExtended,
)

from tfdist.strategies import strategy_classes  # noqa: E402
from tfdist.strategies.devices_and_threads import configure_devices  # noqa: E402
from tfdist.strategies.factory import make_strategy  # noqa: E402
from tfdist.strategies.server import serve  # noqa: E402  # after the check that TensorFlow is there
from tfdist.strategies.strategy_classes import MultiWorkerMirrored  # noqa: E402


def cluster(task=None, **roles):
    made = ClusterConfig(
        **{role: tuple(f"{role}{n}:2222" for n in range(count)) for role, count in roles.items()}
    )
    return made.with_task(task) if task else made


def test_one_process_gets_one_device_by_itself(caplog):
    with caplog.at_level("INFO", "tfdist"):
        strategy = make_strategy()

    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert "strategy auto takes one_device: one process" in caplog.text


@pytest.mark.parametrize("strategy", ["auto", "multi_worker_mirrored"])
def test_a_task_of_several_is_not_taken_for_one_process(strategy, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster(worker=2).tf_config_json("worker", 1))
    with pytest.raises(ConfigError) as caught:
        make_strategy(strategy=strategy)
    assert str(caught.value) == (
        "make_strategy: cluster: is missing, but by its environment this process is worker:1 of several tasks."
        " Pass cluster=ClusterConfig.from_environment(), or ClusterConfig() to train in this process alone"
    )
    assert isinstance(make_strategy(ClusterConfig()), tf.distribute.OneDeviceStrategy)


def test_another_backend_of_keras_is_one_line(monkeypatch):
    monkeypatch.setattr(tf.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ConfigError, match=r"^Keras: expected the backend tensorflow, received jax\. Unset"):
        make_strategy()


def test_an_evaluator_trains_with_nobody():
    strategy = make_strategy(cluster(("evaluator", 0), chief=1, worker=2, ps=1, evaluator=1))

    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)


def test_mirrored_lets_replicas_write_variables():
    strategy = make_strategy(None, "mirrored")
    with strategy.scope():
        fraction, whole, count = tf.Variable(1.0), tf.Variable(1, dtype=tf.int64), tf.Variable(1)

    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert fraction.aggregation == tf.VariableAggregation.MEAN
    for integer in (whole, count):  # with and without a dtype
        assert integer.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA


def test_a_scope_can_be_entered_again_and_within_itself():
    strategy = make_strategy(None, "mirrored")
    with strategy.scope():
        with strategy.scope():
            assert tf.distribute.get_strategy() is strategy
        assert tf.distribute.get_strategy() is strategy
    assert tf.distribute.get_strategy() is not strategy


@pytest.mark.parametrize(
    ("made", "name", "words"),
    [
        (cluster(), "multi_worker_miror", "Did you mean 'multi_worker_mirrored'?"),
        (cluster(("worker", 0), worker=2), "mirrored", "the cluster has 2 tasks"),
        (ClusterConfig(), "multi_worker_mirrored", "needs a cluster, and nothing describes one. Add cluster: "),
        (cluster(worker=2), "multi_worker_mirrored", "which task of the cluster this is"),
        (cluster(("chief", 0), chief=1, worker=2), "parameter_server", "ps"),
        (cluster(("worker", 0), chief=1, worker=2, ps=1), "parameter_server", "Call tfdist.serve(cluster)"),
        (cluster(("worker", 0), chief=1, worker=2, ps=1), "multi_worker_mirrored", "Take parameter_server"),
        (cluster(("evaluator", 0), worker=2, evaluator=1), "multi_worker_mirrored", "the evaluator is not part"),
        (ClusterConfig(chief=["a:1"], jobs={"reader": ["b:1"]}, task=("chief", 0)), "auto", "reader: is not supported in training"),
    ],
)  # fmt: skip
def test_refuses_what_the_cluster_cannot_run(made, name, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_strategy(made, name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"communication": {"implementation": "ring"}},
            "communication.implementation: has no effect with one_d",
        ),
        (
            {"communication": {"dtyp": "int8"}},
            "make_strategy: communication.dtyp: unknown key. Did you mean 'dtype'",
        ),
        ({"communication": "tcp"}, "make_strategy: communication: expected a mapping, received 'tcp'"),
        ({"communication": {"timeout": "1"}}, "communication.timeout: expected a number, received '1'"),
        ({"communication": {"timeout": 1}}, "communication.timeout: has no effect with one_device"),
        ({"max_shards": 2}, "Leave it out, or take parameter_server"),
        ({"precision": "float8"}, "make_strategy: precision: there is no 'float8'. Did you mean 'float64'"),
        ({"logical_devices": 0}, "logical_devices: expected a whole number >= 1, received 0"),
        ({"logical_devices": True}, "received True"),
        ({"intra_op_threads": -1}, "intra_op_threads: expected a whole number >= 0, received -1"),
        ({"memory_growth": True}, "this machine has no GPU"),
        ({"device": "gpu"}, "device: is gpu, but TensorFlow finds no GPU on this machine"),
        ({"device": "gpus"}, "make_strategy: device: there is no 'gpus'. Did you mean 'gpu'"),
        ({"device": "cpu", "memory_growth": True}, "memory_growth: has an effect only with GPUs"),
    ],
)
def test_refuses_options_that_do_nothing(options, words):
    if {"memory_growth", "device"} & set(options) and tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_strategy(None, "one_device", **options)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mirrored", "expected a ClusterConfig, received 'mirrored'. Write strategy='mirrored'"),
        ("ps2w.yaml", "received 'ps2w.yaml'. Read one with ClusterConfig.from_environment() or"),
        ({"worker": ["a:1"]}, "received a dict of 1. Read one with"),
    ],
)
def test_refuses_a_cluster_that_is_something_else(given, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_strategy(given)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (cluster(chief=1, worker=1, ps=1), "which task of the cluster this is"),
        (cluster(("chief", 0), chief=1, worker=1, ps=1), "Call make_strategy on it"),
        (cluster(("worker", 0), worker=2), "chief"),
    ],
)
def test_refuses_to_serve_where_nobody_asks(made, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        serve(made)


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU")
def test_a_worker_without_the_gpu_that_it_is_to_compute_on_serves_nobody():
    with pytest.raises(ConfigError, match="device: is gpu, but"):
        serve(cluster(("worker", 0), chief=1, worker=1, ps=1), device="gpu")


@pytest.mark.gpu
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs a GPU")
def test_cpu_hides_the_gpus(tmp_path):
    script = "import tensorflow as tf, tfdist; tfdist.make_strategy(device='cpu'); assert not tf.config.list_logical_devices('GPU')"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("environ", "options", "words"),
    [
        ({}, {}, "communication.implementation tcp: needs a secret"),
        ({"TFDIST_SECRET": "short"}, {}, "expected a secret of at least 16 characters, received one of 5"),
        (
            {},
            {"implementation": "ring", "dtype": "int8"},
            "communication.dtype: needs implementation tcp, but the implementation is ring",
        ),
        (
            {"TFDIST_SECRET": "s" * 16},
            {"bytes_per_pack": 0},
            "communication.bytes_per_pack: has no effect with tcp",
        ),
        ({}, {"encryption": "tls"}, "communication.encryption tls: needs a secret"),
        (
            {},
            {"implementation": "ring", "encryption": "tls"},
            "communication.encryption tls: needs implementation tcp, but the implementation is ring",
        ),
        ({}, {"encryption": "ssl"}, "make_strategy: communication.encryption: there is no 'ssl'. Known: tls"),
        (
            {},
            {"implementation": "auto", "encryption": "tls", "bytes_per_pack": 0},
            "communication.bytes_per_pack: has no effect with encryption tls, which implies tcp",
        ),
    ],
)
def test_refuses_an_exchange_without_a_secret(monkeypatch, environ, options, words):
    for name in ("TFDIST_SECRET", "TFDIST_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    made, options = cluster(("worker", 0), worker=2), {"implementation": "tcp", **options}
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_strategy(made, "multi_worker_mirrored", communication=options)


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        (
            "parameter_server",
            {"implementation": "tcp"},
            "tcp: needs a secret by which the tasks recognize each other; the launcher makes one. Set"
            " TFDIST_SECRET or TFDIST_SECRET_FILE to the same secret for all tasks, or set grpc",
        ),
        (
            "parameter_server_sync",
            {"implementation": "ring"},
            "communication.implementation ring: is not supported with parameter_server_sync. Set auto or tcp or grpc",
        ),
        (
            "multi_worker_mirrored",
            {"implementation": "grpc"},
            "communication.implementation grpc: is not supported with multi_worker_mirrored. Set auto or tcp or ring or nccl",
        ),
        (
            "parameter_server",
            {"dtype": "int8"},
            "communication.dtype: needs implementation tcp, but the implementation is auto",
        ),
        (
            "parameter_server",
            {"bytes_per_pack": 1},
            "communication.bytes_per_pack: has no effect with parameter_server",
        ),
    ],
)
def test_refuses_a_communication_of_another_strategy(monkeypatch, strategy, options, words):
    for name in ("TFDIST_SECRET", "TFDIST_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    is_ps = strategy != "multi_worker_mirrored"
    made = cluster(("chief", 0), chief=1, worker=1, ps=1) if is_ps else cluster(("worker", 0), worker=2)
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_strategy(made, strategy, communication=options)


def test_an_evaluator_that_knows_the_secret_exchanges_nothing(monkeypatch):
    monkeypatch.setenv("TFDIST_SECRET", "s" * 16)
    for shape in ({"worker": 2}, {"chief": 1, "worker": 1, "ps": 1}):
        made = make_strategy(cluster(("evaluator", 0), evaluator=1, **shape))
        assert isinstance(made, tf.distribute.OneDeviceStrategy)


def test_says_that_workers_are_connected_before_tensorflow_is_used():
    tf.constant(1.0)
    options = {"communication": {"implementation": "ring"}}
    with pytest.raises(ConfigError, match="after TensorFlow was used"):
        make_strategy(cluster(("chief", 0), chief=1, worker=1), "multi_worker_mirrored", **options)


def test_a_mirrored_worker_computes_on_all_of_its_devices(monkeypatch):
    made = []
    monkeypatch.setattr(
        tf.distribute.MultiWorkerMirroredStrategy,
        "__init__",
        lambda self, *_: made.append(
            CollectiveAllReduceExtended._initialize_local_devices(None, None, "/me")
        ),
    )
    for name in ("convert_initial_values", "replace_cross_device_ops"):
        monkeypatch.setattr(strategy_classes, name, lambda *_: None)
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU") for index in range(2)]
    splits = {gpus[0]: None, gpus[1]: [tf.config.LogicalDeviceConfiguration(1024)] * 2}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", splits.__getitem__)

    MultiWorkerMirrored(None, None, None, 600.0)

    assert made == [(("/me/device:GPU:0", "/me/device:GPU:1", "/me/device:GPU:2"), "GPU")]


def test_gpus_are_taken_as_they_are_where_logical_devices_are_asked_for(monkeypatch, caplog):
    # TensorFlow splits a GPU only with limits on its memory.
    gpus = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")] * 2
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    with caplog.at_level("INFO", "tfdist"):
        configure_devices("auto", logical_devices=3, inter_op_threads=None)

    assert "logical_devices: has no effect on 2 GPUs" in caplog.text
