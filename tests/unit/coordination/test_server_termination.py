"""The mark that a server leaves when it is told to end, and whether the chief finds it."""

import time

import tensorflow as tf

from tfdist.cluster.config import Task
from tfdist.coordination import server_termination


def test_the_mark_is_found_where_it_is_left(monkeypatch, caplog):
    monkeypatch.setattr(server_termination, "_SECONDS_BETWEEN_POLLS", 0.01)
    # This process takes both parts.
    with server_termination.ServerTermination([Task("localhost", 0)]) as looking:
        time.sleep(0.2)
        assert not looking.is_announced
        server_termination.announce_termination()
        try:
            until = time.monotonic() + 30
            while not looking.is_announced and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            tf.io.gfile.remove(server_termination._MARK)
    assert looking.is_announced
    assert "localhost:0 was told to end: saving everything" in caplog.text
