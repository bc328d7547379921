"""The mark that the chief leaves with its servers."""

import time

import tensorflow as tf

from tfdist.cluster.config import ClusterConfig, Task
from tfdist.coordination import end_announcements
from tfdist.coordination.wait_for_tasks import await_servers


def test_the_mark_is_left_as_a_file_and_without_a_complaint(caplog):
    caplog.set_level("INFO", "tfdist")
    assert not end_announcements.is_shutdown_told()
    try:
        end_announcements._write_mark_on_all(end_announcements._ENDED_MARK, [Task("localhost", 0)])
        assert end_announcements.is_shutdown_told()
        # So nobody waits for a chief that came and went between two questions.
        nobody = ClusterConfig.local(workers=1, ps=1)
        await_servers("serve", nobody, [Task("chief", 0)], 60.0, unless=end_announcements.is_shutdown_told)
        assert not tf.io.gfile.isdir(end_announcements._ENDED_MARK)
        assert not caplog.records
    finally:
        tf.io.gfile.remove(end_announcements._ENDED_MARK)


def test_the_mark_is_found_where_it_is_left(monkeypatch, caplog):
    monkeypatch.setattr(end_announcements, "_SECONDS_BETWEEN_POLLS", 0.01)
    # This process takes both parts.
    with end_announcements.ServerTermination([Task("localhost", 0)]) as looking:
        time.sleep(0.2)
        assert not looking.is_announced
        end_announcements.announce_termination()
        try:
            until = time.monotonic() + 30
            while not looking.is_announced and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            tf.io.gfile.remove(end_announcements._MARK)
    assert looking.is_announced
    assert "localhost:0 was told to end: saving everything" in caplog.text


def test_an_error_of_one_call_does_not_end_the_questions(monkeypatch):
    monkeypatch.setattr(end_announcements, "_SECONDS_BETWEEN_POLLS", 0.01)
    answers = iter([tf.errors.UnavailableError(None, None, "Connection reset by peer"), ["a mark"]])

    def answer(_):
        if isinstance(answered := next(answers), Exception):
            raise answered
        return answered

    monkeypatch.setattr(end_announcements, "fetch", answer)
    with end_announcements.ServerTermination([Task("localhost", 0)]) as looking:
        until = time.monotonic() + 30
        while not looking.is_announced and time.monotonic() < until:
            time.sleep(0.01)
    assert looking.is_announced
