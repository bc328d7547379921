"""A chief that loses a task as TensorFlow connects all ends to be started again."""

import pytest
import tensorflow as tf

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination import end_announcements
from tfdist.errors import TaskLost
from tfdist.strategies.wait_then_connect import connecting


def test_servers_are_not_told_to_end_with_a_chief_that_starts_again(monkeypatch):
    servers = {Task("ps", 0), Task("worker", 0)}
    monkeypatch.setattr(end_announcements, "_servers", servers)
    message = r"^make_strategy: lost a task as TensorFlow connected all: worker:0 is gone\. Start the cluster again$"
    with (
        pytest.raises(TaskLost, match=message),
        connecting("make_strategy", ClusterConfig(), None, timeout=1.0),
    ):
        raise tf.errors.UnavailableError(None, None, "worker:0 is gone")
    assert not servers
