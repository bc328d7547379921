"""What a script prints when it fails: one line for an error of tfdist, all of any other."""

from importlib.metadata import version

import pytest

tf = pytest.importorskip("tensorflow")

from again import again  # noqa: E402
from tfdist.errors import ConfigError  # noqa: E402
from tfdist.training.error_messages import print_uncaught_errors  # noqa: E402

SCRIPT = """
import tensorflow as tf
from tfdist.errors import ConfigError
from tfdist.training.error_messages.print_uncaught_errors import print_own_errors_in_a_line
print_own_errors_in_a_line()
print_own_errors_in_a_line()  # changes nothing more

class Executor:
    def __del__(self):
        raise ERROR

executor = Executor()
del executor
raise RAISED
"""
LOST = 'tf.errors.UnavailableError(None, None, "a task is gone")'


def raising(error, raised):
    return SCRIPT.replace("ERROR", error).replace("RAISED", raised)


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(LOST, False), ('ValueError("a mistake of its own")', True)],
    ids=["lost", "other"],
)
def test_an_executor_that_misses_a_lost_task_prints_nothing(run_program, error, is_shown):
    done = run_program(raising(error, 'ConfigError("here", "is wrong", remedy="Mend it")'))
    assert done.returncode == 2
    assert done.stderr.endswith(f"tfdist: here: is wrong. Mend it ({done.args[0]}, line 14)\n")
    assert ("Exception ignored" in done.stderr) == is_shown


@pytest.mark.parametrize(("error", "status"), [("Preempted", 138), ("ConfigError", -15)])
def test_a_signal_after_the_error_leaves_the_status_of_saved_work(run_program, error, status):
    late = "import atexit, signal\natexit.register(signal.raise_signal, signal.SIGTERM)\n"
    script = late + SCRIPT.replace("ConfigError", error).replace("ERROR", "SystemExit")
    script = script.replace("RAISED", f'{error}("SIGTERM", "a checkpoint is saved")')
    done = run_program(script)
    assert done.returncode == status, done.stderr


def test_a_second_strategy_is_named_in_a_line(run_program):
    script = """
import tensorflow as tf
import tfdist
tfdist.start()
with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
    pass
"""
    done = run_program(script)
    assert done.returncode == 2
    line = "tfdist: the script: makes a strategy of its own. Leave it out: tfdist.start() makes the strategy"
    assert line in done.stderr
    assert done.stderr.endswith(f"({done.args[0]}, line 5)\n")


LOOP = """
import keras
import tensorflow as tf
import tfdist
tfdist.start("mirrored", logical_devices=2)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam()

DECORATOR
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

for _ in range(2):
    step(tf.ones((4, 3)))
"""


@pytest.mark.parametrize("decorator", ["@tf.function", again("")])
def test_a_loop_that_knows_no_strategy_gets_a_line(run_program, decorator):
    script = LOOP.replace("DECORATOR", decorator)
    done = run_program(script)
    assert done.returncode == 2
    assert "tfdist: the script: takes a training step outside of strategy.run" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith(f"({done.args[0]}, line 17)\n")


EXCHANGES = """
import tensorflow as tf
import tfdist
strategy = tfdist.start("mirrored", logical_devices=2)

def exchange(value):
    raise tf.errors.UnknownError(None, None, "TEXT")

exchange(1)
"""
BROKEN = "tfdist.transport.listen_and_call.ExchangeError: worker:1 is "
EXPLAINED = [
    (BROKEN + "gone", 138, "worker:1 is gone. Its own log says why; start the cluster again"),
    again(BROKEN + "at another exchange", 2, "exchanges on one worker what others do not"),
    ("no space", 1, ""),
]


@pytest.mark.parametrize(("text", "status", "line"), EXPLAINED, ids=["lost", "apart", "other"])
def test_a_failed_exchange_of_a_loop_of_ones_own_is_explained(run_program, text, status, line):
    code = EXCHANGES.replace("TEXT", text)
    done = run_program(code)
    assert done.returncode == status
    assert ("Traceback" in done.stderr) == (not line)
    assert ("tfdist: the script: " + line in done.stderr) == bool(line)


@pytest.mark.skipif(version("keras") < "3", reason="Keras 2 has no optimizer that accumulates gradients")
def test_an_optimizer_that_branches_is_named_in_a_line(run_program):
    replaced = {
        "DECORATOR": "",
        "Adam()": "SGD(gradient_accumulation_steps=2)",
        "    step(tf": "    tf.function(lambda: strategy.run(step, args=(tf.ones((4, 3)),)), autograph=False)()  # (",
        "tfdist.start(": "strategy = tfdist.start(",
    }
    script = LOOP
    for old, new in replaced.items():
        script = script.replace(old, new)
    done = run_program(script)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "tfdist: the script: applies gradients inside of a tf.function or a branch" in done.stderr


def test_an_operation_that_a_worker_has_not_imported_is_explained():
    coordinator = pytest.importorskip("tensorflow.python.distribute.coordinator.cluster_coordinator")
    missing = tf.errors.NotFoundError(None, None, "Op type not registered 'RegexSplitWithOffsets' in binary")
    explained = print_uncaught_errors._explained(coordinator.ClosureInputError(missing))
    assert isinstance(explained, ConfigError)
    assert "Import the package before tfdist.start()" in str(explained)


def test_another_error_keeps_its_traceback(run_program):
    done = run_program(raising(LOST, 'ValueError("of the script")'))
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("ValueError: of the script\n")
