"""What is said where an exchange over connections of our own breaks."""

import pytest
import tensorflow as tf

from tfdist.errors import TaskLost
from tfdist.training.task_errors import naming_lost_tasks
from tfdist.transport.listen_and_call import ExchangeError


def exchange(number):
    raise ExchangeError("worker:1 at 10.0.0.7:2222 is gone: it has closed the connection")


def add_up():
    return tf.numpy_function(exchange, [tf.constant(1.0)], tf.float32)


@pytest.mark.parametrize("call", [add_up, tf.function(add_up)])
def test_an_exchange_that_breaks_is_told_in_one_line_in_a_graph_and_outside(call):
    with (
        pytest.raises(
            TaskLost,
            match=r"^fit: worker:1 at 10\.0\.0\.7:2222 is gone: it has closed the connection\. Its own",
        ),
        naming_lost_tasks("fit", tf.distribute.get_strategy()),
    ):
        call()
