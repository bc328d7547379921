"""The mark that the chief leaves with its servers."""

import tensorflow as tf

from tfdist import farewell
from tfdist.awaiting import await_servers
from tfdist.cluster import ClusterConfig, Task


def test_the_mark_is_left_as_a_file_and_without_a_complaint(caplog):
    caplog.set_level("INFO", "tfdist")
    assert not farewell.farewell_was_said()
    try:
        farewell._mark("/cpu:0", tf.constant(farewell._MARK), tf.constant(""))
        assert farewell.farewell_was_said()
        # So nobody waits for a chief that came and went between two questions.
        nobody = ClusterConfig.local(workers=1, ps=1)
        await_servers("serve", nobody, [Task("chief", 0)], 60.0, unless=farewell.farewell_was_said)
        assert not tf.io.gfile.isdir(farewell._MARK)
        assert not caplog.records
    finally:
        tf.io.gfile.remove(farewell._MARK)
