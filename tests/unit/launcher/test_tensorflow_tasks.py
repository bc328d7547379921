"""The launcher with what it is for: TensorFlow's servers, in a private network where there may be one."""

import io
import sys

import pytest
from launched import nothing_left  # noqa: F401  # a fixture

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.launch_tasks import launch

# A plain program: its servers wait for ever, as tf.distribute.Server.join() does.
PROGRAM = """
import json, os
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type != "chief":
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()
tf.config.experimental_connect_to_cluster(resolver.cluster_spec(), job_name="chief", task_index=0)
with tf.device("/job:ps/replica:0/task:0"):
    held = tf.Variable(20.0)
with tf.device("/job:worker/replica:0/task:1"):
    answer = held + 22.0
print("answer", float(answer), answer.device)
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("network_isolation", ["auto", pytest.param("never", marks=pytest.mark.slow)])
def test_tensorflows_servers_find_each_other_and_are_ended_after_the_chief(
    tmp_path, network_isolation, monkeypatch
):
    # With this variable alone, TensorFlow's servers would look for each other through the proxy for ever.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    cluster, stream = ClusterConfig.local(workers=2, ps=1), io.StringIO()
    command = [sys.executable, "-c", PROGRAM]
    report = launch(
        cluster, command, run_dir=tmp_path, grace=1, network_isolation=network_isolation, stream=stream
    )
    assert "[chief:0] answer 42.0 /job:worker/replica:0/task:1/device:CPU:0\n" in stream.getvalue()
    assert [each.task for each in report.exits if each.code == 0] == [("chief", 0)]
    assert all(each.asked for each in report.exits[1:])
