import numpy as np
import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError
from tfdist.remote.connect_map_reduce import connect
from tfdist.remote.reduction import Parts, reduced, size_of


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (ClusterConfig(), "is for the chief, but this is no task. Set its task: cluster.with_task"),
        (ClusterConfig(chief=["a:1"], worker=["b:1"], task=("worker", 0)), "Call tfdist.serve"),
        (ClusterConfig(chief=["a:1"], task=("chief", 0)), "has only a chief, and no task to connect to"),
        (ClusterConfig(chief=["a:1"], evaluator=["b:1"], task=("chief", 0)), "no task to connect to"),
    ],
)
def test_refuses_to_connect_where_that_cannot_be(cluster, words):
    with pytest.raises(ConfigError, match=words), connect(cluster):
        pass


def test_a_slice_has_the_size_that_its_parts_share():
    assert size_of(np.zeros((3, 2))) == 3
    assert size_of((np.zeros((3, 2)), {"y": np.zeros(3)})) == 3
    assert size_of((np.zeros(3), np.zeros(2))) is None
    assert size_of(np.float64(1.0)) == 1


def test_an_empty_slice_counts_for_nothing():
    values = Parts([{"loss": np.float64("nan")}, {"loss": np.float64(2.0)}], [0, 4])
    assert float(reduced("mean", values, None)["loss"]) == 2.0


class Unreadable:
    def __array__(self, *_, **__):
        raise ValueError


@pytest.mark.parametrize(
    ("op", "values", "sizes", "words"),
    [
        ("median", [1.0], None, "unknown operation 'median'. Did you mean 'mean'?"),
        ("sum", [1.0], [1], "reduce: sizes: has no effect with sum"),
        ("mean", [], None, "expected one value or more, received none"),
        ("mean", [1.0, 2.0], [1], "expected 2 sizes of 0 or more, not all 0"),
        ("mean", [1.0, 2.0], [1, -1], "expected 2 sizes"),
        ("mean", [1.0, 2.0], [0, 0], "expected 2 sizes"),
        ("sum", [[1.0], 2.0], None, "the values cannot be combined"),
        ("sum", [np.zeros(2), np.zeros(3)], None, "the values cannot be combined"),
        ("min", [np.zeros((2, 1)), np.zeros(2)], None, "the values cannot be combined"),
        ("concat", [np.zeros((2, 1)), np.zeros((2, 2))], None, "the values cannot be combined"),
        ("sum", [Unreadable()], None, "the values cannot be combined: ValueError"),
    ],
)
def test_what_cannot_be_reduced_is_refused(op, values, sizes, words):
    with pytest.raises(ConfigError) as caught:
        reduced(op, values, sizes)
    assert words in str(caught.value)
