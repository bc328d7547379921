"""What is said where an exchange over connections of our own breaks."""

import pytest
import tensorflow as tf

from tfdist.errors import TaskLost
from tfdist.training.error_messages.lost_task_errors import naming_lost_tasks
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


ON_THE_CHIEF = """
import tensorflow as tf
from tfdist.training.error_messages.lost_task_errors import naming_lost_tasks
from tfdist.transport.listen_and_call import ExchangeError
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # which nothing may precede in its process
with naming_lost_tasks("predict", strategy):
    raise ExchangeError("worker:1 is gone: it has closed the connection")
"""


def test_a_chief_that_predicts_alone_is_told_what_to_write_instead(run_program):
    last = run_program(ON_THE_CHIEF).stderr.splitlines()[-1]
    assert "predict: worker:1 is gone" in last
    assert "let all workers call it, or let all call tfdist.save(model, path) and predict in another" in last
