import logging

from tfdist.trainer.stragglers import Stragglers


def judged(caplog, stragglers, *milliseconds):
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tfdist"):
        stragglers.judge({f"worker:{index} at h:{index}": each for index, each in enumerate(milliseconds)})
    return [f"{record.levelname} {record.message}" for record in caplog.records]


def test_a_straggler_is_named_once_and_again_when_that_changes(caplog):
    stragglers = Stragglers()
    assert judged(caplog, stragglers, 80, 120, 85) == []
    assert judged(caplog, stragglers, 80, 210, 80) == [
        "WARNING worker:1 at h:1 takes 210 ms a step, 2.6 times the median of the others (80 ms)"
    ]
    assert judged(caplog, stragglers, 80, 500, 80) == []
    assert judged(caplog, stragglers, 80, 150, 80) == []  # between the two, it is what it was
    assert judged(caplog, stragglers, 80, 100, 80) == [
        "INFO worker:1 at h:1 keeps up again: 100 ms a step, the others 80"
    ]
    assert len(judged(caplog, stragglers, 80, 210, 80)) == 1


def test_of_two_each_is_compared_with_the_other(caplog):
    assert judged(caplog, Stragglers(), 0.5, 1.26) == [
        "WARNING worker:1 at h:1 takes 1.3 ms a step, 2.5 times the median of the others (0.5 ms)"
    ]


def test_one_alone_is_no_straggler(caplog):
    assert judged(caplog, Stragglers(), 80) == []
