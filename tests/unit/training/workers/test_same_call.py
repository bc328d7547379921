"""Calls that all workers must make, before a worker is connected to the others."""

import keras
import pytest
import tensorflow as tf

from tfdist._utils import tf_private
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.strategies import current_cluster_and_strategy
from tfdist.training.barrier import barrier
from tfdist.training.save import save
from tfdist.training.workers import same_call


def made():
    return keras.Sequential([keras.layers.InputLayer((2,)), keras.layers.Dense(1)])


@pytest.fixture(autouse=True)
def not_started(monkeypatch):
    monkeypatch.setattr(current_cluster_and_strategy, "_strategy", None)
    monkeypatch.setattr(current_cluster_and_strategy, "_cluster", None)


MIRRORED = [
    ("worker:1", ClusterConfig(worker=("a:1", "b:1")).with_task("worker", 1)),
    ("chief:0", ClusterConfig(chief=("a:1",), worker=("b:1",)).with_task("chief")),
]


@pytest.mark.parametrize(("task", "cluster"), MIRRORED, ids=["worker", "chief"])
def test_a_worker_cannot_wait_before_it_is_connected(task, cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CONFIG", cluster.tf_config_json())
    for name, call in (("barrier", barrier), ("save", lambda: save(made(), tmp_path / "model.keras"))):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == (
            f"{name}: is called before tfdist.start(), so {task} cannot wait for the other workers."
            " Call tfdist.start() right after the imports"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", [None, ("chief", 0)])
def test_a_process_that_trains_alone_waits_for_nobody(task, monkeypatch, tmp_path):
    cluster = ClusterConfig(chief=("a:1",), worker=("a:2",), ps=("a:3",))
    if task is not None:
        monkeypatch.setenv("TF_CONFIG", cluster.tf_config_json(*task))
    barrier()
    save(made(), tmp_path / "model.keras")
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


def test_the_last_text_of_a_worker_that_has_ended_is_read(monkeypatch):
    class Store:
        """TensorFlow's coordination service, which has sent a text and ended with its worker."""

        def get_config_key_value(self, key):
            return f"the text under {key}"

        def delete_config_key_value(self, key):
            raise tf.errors.UnavailableError(None, None, "connection refused")

    monkeypatch.setattr(tf_private.context, "context", Store)
    assert same_call._Store().take("to/1/0") == "the text under tfdist/calls/to/1/0"


@pytest.mark.parametrize("are_all_there", [True, False])
def test_workers_that_answer_have_longer_to_tell_their_calls(monkeypatch, are_all_there):
    class Watch:
        def why_broken(self, seconds, *, is_broken):
            return seconds, is_broken

    monkeypatch.setattr(same_call, "_watch", Watch())
    seconds, is_broken = same_call.why_out_of_step(are_all_there=are_all_there)
    assert is_broken == are_all_there
    assert seconds == (10.0 if are_all_there else 2.0)
