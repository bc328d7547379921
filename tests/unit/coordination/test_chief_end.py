"""The mark that the chief leaves with its servers."""

import tensorflow as tf

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination import chief_end
from tfdist.coordination.waiting import await_servers


def test_the_mark_is_left_as_a_file_and_without_a_complaint(caplog):
    caplog.set_level("INFO", "tfdist")
    assert not chief_end.is_shutdown_told()
    try:
        chief_end._write_mark_on_all(chief_end._ENDED_MARK, ["/cpu:0"])
        assert chief_end.is_shutdown_told()
        # So nobody waits for a chief that came and went between two questions.
        nobody = ClusterConfig.local(workers=1, ps=1)
        await_servers("serve", nobody, [Task("chief", 0)], 60.0, unless=chief_end.is_shutdown_told)
        assert not tf.io.gfile.isdir(chief_end._ENDED_MARK)
        assert not caplog.records
    finally:
        tf.io.gfile.remove(chief_end._ENDED_MARK)
