"""What workers and parameter servers send over the TCP transport equals what TensorFlow's gRPC sends."""

import signal

import numpy as np
import pytest
import tensorflow as tf
from clusters import LONGEST, Running, on, run_cluster
from test_lost import begun, lose, says

from again import again
from tfdist.cluster.config import ClusterConfig
from tfdist.transport.authentication import SECRET

BY_LINE, BY_MEMORY = (
    {"communication": {"implementation": each}, "min_shard_bytes": 2000} for each in ("tcp", "auto")
)
STEPS, HEADER = 12, 45


@pytest.mark.parametrize("options", [BY_MEMORY, again(BY_LINE)])
def test_nothing_is_other_than_by_grpc_and_a_lost_ps_is_named(tmp_path, options):
    shape = {"workers": 1, "ps": 2}
    first = ["ps_transfer_cases.both_ways"]
    with begun(tmp_path, "parameter_server", "fitting", options=options, first=first, **shape) as (
        running,
        _,
    ):
        _, lost = lose(running, "ps:1")
        finished = running.wait(LONGEST, failures_expected=True)

    says(finished, "chief:0", "fit", lost)
    found = finished.results["chief:0"]["ps_transfer_cases.both_ways"]
    sent, dense = found["ps_transfer"].pop("sent"), found["ps_transfer"].pop("dense")
    assert found["ps_transfer"]["weights"] != found["ps_transfer"]["begun"]
    assert found["ps_transfer"] == {name: found["grpc"][name] for name in found["ps_transfer"]}  # to the bit
    by_line = options is BY_LINE
    least = STEPS * (2 * dense * by_line + 2 * 2 * HEADER)
    # Where the memory is in use, a message goes over the connection.
    assert least <= sent <= (least if by_line else STEPS * dense)
    in_buckets = found["in buckets"]
    buckets, rest = divmod(in_buckets.pop("sent") - least, STEPS * HEADER)
    assert (buckets > 3, in_buckets.pop("dense")) == (True, dense)
    assert rest == 0 or not by_line
    assert in_buckets == found["ps_transfer"]  # to the bit


@pytest.mark.slow
def test_updates_in_branches_are_the_same_too(tmp_path):
    options = {"communication": {"encryption": "tls"}}
    cases = ["ps_transfer_cases.in_branches"]
    finished = run_cluster(tmp_path, "parameter_server_sync", cases, options=options, workers=1, ps=1)

    for name, (tcp, grpc) in finished.chief["ps_transfer_cases.in_branches"].items():
        assert tcp["sent"] > grpc["sent"] == 0, name
        assert tcp["weights"] == grpc["weights"] != grpc["begun"], name


@pytest.mark.skipif(tf.keras.__version__ < "3", reason="Keras 2 fetches nothing by itself")
@pytest.mark.parametrize(
    "strategy", on(["parameter_server", "parameter_server_sync"], again=["parameter_server"])
)
def test_weights_train_that_a_function_with_its_own_gradient_reads(tmp_path, strategy):
    cases = ["ps_transfer_cases.in_other_graphs"]
    tcp, grpc = run_cluster(tmp_path, strategy, cases, workers=1, ps=1).chief[cases[0]]

    assert tcp == grpc  # to the bit
    assert tcp["turns"] == 6 * 3
    assert np.abs(np.subtract(tcp["kernel"], tcp["begun"])).max() > 0.05  # the penalty alone makes it smaller


@pytest.mark.slow
def test_a_ps_that_is_silent_is_named(tmp_path):
    options = {"communication": {"implementation": "tcp", "timeout": 20.0}}
    order = {"strategy": "parameter_server", "options": options, "cases": ["ps_transfer_cases.impatient"]}
    cluster = ClusterConfig.local(workers=1, ps=2)
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            running.start(task, {**order, "folder": str(tmp_path)})
        running.wait_for("begun")
        stopped, lost = lose(running, "ps:0", by=signal.SIGSTOP)
        try:
            finished = running.wait(LONGEST, failures_expected=True)
        finally:
            stopped.kill()

    assert finished.exit_codes["chief:0"] == 138, finished.logs["chief:0"][-3000:]
    assert f"TaskLost: {lost.removeprefix('lost ')}: does not answer" in finished.logs["chief:0"]


@pytest.mark.slow
def test_fewer_bits_lead_to_the_same_end(tmp_path):
    options = {"communication": {"implementation": "tcp", "dtype": "int8"}}
    cases = ["ps_transfer_cases.narrowed"]
    found = run_cluster(tmp_path, "parameter_server", cases, options=options, workers=1, ps=1)
    narrow, whole = found.chief["ps_transfer_cases.narrowed"]

    assert narrow["loss"][-1] == pytest.approx(whole["loss"][-1], rel=0.1)
    assert narrow["loss"] != whole["loss"]
    assert narrow["sent"] < 0.4 * STEPS * 2 * whole["dense"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "status"), [pytest.param("tcp", 2, marks=pytest.mark.again), ("auto", 0)]
)
def test_tasks_that_do_not_know_each_other_send_nothing_over_tcp(
    tmp_path, monkeypatch, implementation, status
):
    cluster = ClusterConfig.local(workers=1, ps=1)
    options = {"communication": {"implementation": implementation}}
    cases, folder = ["ps_transfer_cases.way"], str(tmp_path)
    order = {"strategy": "parameter_server", "options": options, "cases": cases, "folder": folder}
    with Running(tmp_path, cluster) as running:
        for task in cluster.tasks():
            monkeypatch.setenv(SECRET, f"a secret of {task} alone")
            running.start(task, order)
        finished = running.wait(LONGEST, failures_expected=True)

    log = finished.logs["chief:0"]
    assert finished.exit_codes["chief:0"] == status, log[-3000:]
    if status:
        assert (
            "ConfigError: communication.implementation tcp: cannot connect the tasks: worker:0 has no connection to ps:0 at"
            in log
        )
        return
    assert "use TensorFlow's gRPC, which is slower: worker:0 has no connection to ps:0 at" in log
    assert finished.chief["ps_transfer_cases.way"] == "grpc"
