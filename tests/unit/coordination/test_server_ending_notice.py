"""The mark that a server leaves when it is told to end, and whether the chief finds it."""

import time

import tensorflow as tf

from tfdist.cluster.config import Task
from tfdist.coordination import server_ending_notice


def test_the_mark_is_found_where_it_is_left(monkeypatch, caplog):
    monkeypatch.setattr(server_ending_notice, "_SECONDS_BETWEEN_POLLS", 0.01)
    # This process takes both parts.
    with server_ending_notice.Departures([Task("localhost", 0)]) as looking:
        time.sleep(0.2)
        assert not looking.are_due
        server_ending_notice.announce_departure()
        try:
            until = time.monotonic() + 30
            while not looking.are_due and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            tf.io.gfile.remove(server_ending_notice._MARK)
    assert looking.are_due
    assert "localhost:0 was told to end: saving everything" in caplog.text
