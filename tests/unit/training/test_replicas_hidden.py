import threading

import pytest

tf = pytest.importorskip("tensorflow")

from tfdist.training.replicas_hidden import replicas_hidden, replicas_hideable  # noqa: E402


@pytest.fixture
def strategy(monkeypatch):
    made = tf.distribute.OneDeviceStrategy("/cpu:0")
    monkeypatch.setattr(type(made.extended), "_num_replicas_in_sync", property(lambda _: 4))
    return made


def test_one_replica_is_counted_in_this_thread_only(strategy):
    counted = []
    with replicas_hideable():
        assert strategy.num_replicas_in_sync == 4
        with replicas_hidden():
            assert strategy.num_replicas_in_sync == 1
            thread = threading.Thread(target=lambda: counted.append(strategy.num_replicas_in_sync))
            thread.start()
            thread.join()
            with replicas_hidden(False):
                assert strategy.num_replicas_in_sync == 4
            assert strategy.num_replicas_in_sync == 1
        assert strategy.num_replicas_in_sync == 4
    assert counted == [4]


def test_nothing_stays_when_a_block_fails(strategy):
    before = dict(vars(tf.distribute.Strategy))
    with pytest.raises(ZeroDivisionError), replicas_hideable(), replicas_hidden():
        1 / 0  # noqa: B018
    assert dict(vars(tf.distribute.Strategy)) == before
    with replicas_hideable():
        assert strategy.num_replicas_in_sync == 4
