"""Tasks that share no secret are told, once, what it costs and how to get one."""

import types

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError, TaskLost

pytest.importorskip("tensorflow")

from tfdist.strategies import choose_transport
from tfdist.strategies.choose_transport import collectives_of, shared_secret, transfer_over_tcp
from tfdist.strategies.options import CommunicationOptions, StrategyOptions
from tfdist.transport.listen_and_call import ConnectError

AUTO = CommunicationOptions()
WORKERS = ClusterConfig(worker=["a:1", "b:1"])


def _said(caplog, task, options=AUTO, *, name="multi_worker_mirrored", cluster=WORKERS):
    with caplog.at_level("INFO", "tfdist"):
        assert shared_secret(cluster.with_task(*task), name, options) is None
    return caplog.text


def test_the_first_worker_names_the_command_that_makes_a_secret(caplog):
    text = _said(caplog, ("worker", 0))

    assert "share no secret" in text
    assert "Set TFDIST_SECRET to the same secret for all tasks: python3 -c" in text


def test_so_does_the_chief_of_parameter_servers(caplog):
    cluster = ClusterConfig(chief=["c:1"], worker=["a:1"], ps=["p:1"])

    assert "share no secret" in _said(caplog, ("chief", 0), name="parameter_server", cluster=cluster)


@pytest.mark.parametrize(
    ("task", "implementation", "name"),
    [
        (("worker", 1), None, "multi_worker_mirrored"),  # once for the cluster
        (("worker", 0), "ring", "multi_worker_mirrored"),  # the user has chosen
        (("worker", 0), None, "one_device"),
    ],
)
def test_nothing_is_said_elsewhere(caplog, task, implementation, name):
    assert _said(caplog, task, CommunicationOptions(implementation), name=name) == ""


def test_a_secret_needs_no_word(caplog, monkeypatch):
    monkeypatch.setenv("TFDIST_SECRET", "a secret of this test alone")
    with caplog.at_level("INFO", "tfdist"):
        found = shared_secret(WORKERS.with_task("worker", 0), "multi_worker_mirrored", AUTO)

    assert (found, caplog.text) == (b"a secret of this test alone", "")


def test_gpus_are_said_to_use_tensorflow(caplog, monkeypatch):
    monkeypatch.setattr(choose_transport, "device_kind", lambda: "GPU")

    assert "GPUs exchange by TensorFlow (NCCL, gRPC)" in _said(caplog, ("worker", 0))


def test_workers_that_share_a_gpu_exchange_without_nccl(caplog, monkeypatch):
    monkeypatch.setenv("TFDIST_SHARES_GPU", "1")
    monkeypatch.setattr(choose_transport, "devices_to_compute_on", lambda: ("GPU", 1))
    monkeypatch.setattr(choose_transport.tf.config, "get_visible_devices", lambda _: ["a GPU"])
    ring = choose_transport.tf.distribute.experimental.CommunicationImplementation.RING
    with caplog.at_level("INFO", "tfdist"):
        assert collectives_of(CommunicationOptions()).implementation == ring
    assert "replicas share a GPU" in caplog.text
    nccl = CommunicationOptions(implementation="nccl")
    assert collectives_of(nccl).implementation != ring  # as it is asked for


@pytest.mark.parametrize("implementation", [None, "tcp"])
@pytest.mark.parametrize("answer", [True, False, None])
def test_a_server_that_is_lost_while_tasks_connect_is_no_mistake_of_the_user(
    monkeypatch, implementation, answer
):
    cluster = ClusterConfig(chief=["c:1"], worker=["a:1"], ps=["p:1", "p:2"]).with_task("chief", 0)

    def connect(*_, **__):
        raise ConnectError("worker:0 has no connection to ps:1 at p:2: connection refused")

    monkeypatch.setattr(choose_transport, "PsTransfer", connect)
    monkeypatch.setattr(choose_transport, "answers", lambda address: answer if address == "p:2" else True)
    monkeypatch.setattr(choose_transport, "_SECONDS_TO_BE_GONE", 0.1)
    options = StrategyOptions(communication=CommunicationOptions(implementation))
    strategy = types.SimpleNamespace(num_replicas_in_sync=1, ps_transfer=None)
    if answer and implementation is None:
        transfer_over_tcp(strategy, cluster, options)
        assert strategy.ps_transfer is None
        return
    with pytest.raises(ConfigError if answer else TaskLost, match="connection refused") as raised:
        transfer_over_tcp(strategy, cluster, options)
    assert answer or str(raised.value).startswith("ps:1 at p:2: cannot connect the tasks")
