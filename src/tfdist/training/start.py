"""Make a process part of its cluster in one line, at the head of a script that all tasks run."""

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfdist._utils.new_run_folder import new_run_folder
from tfdist._utils.strategy_kinds import is_asynchronous
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.heartbeat_watch import Watcher, check_heartbeat_timeout
from tfdist.coordination.stall_limit import StallTimeout, checked_timeout
from tfdist.coordination.stall_watch import StallWatch
from tfdist.errors import ConfigError
from tfdist.launcher.start_workers_and_ps import start_servers
from tfdist.strategies.devices_and_threads import check_device
from tfdist.strategies.factory import check_is_cluster, make_strategy
from tfdist.strategies.lasting_patches import enter_for_good, save_and_load_outside_scopes
from tfdist.strategies.server import serve
from tfdist.strategies.strategy_classes import MultiWorkerMirrored, ps_transfer_of
from tfdist.strategies.strategy_names import StrategyName
from tfdist.training.data.inspect_dataset import check_order
from tfdist.training.error_messages.lost_task_errors import naming_lost_tasks
from tfdist.training.error_messages.print_uncaught_errors import print_own_errors_in_a_line
from tfdist.training.evaluate import evaluate
from tfdist.training.fit import fit
from tfdist.training.predict import predict, predict_on_batch
from tfdist.training.train_and_test_on_batch import evaluate_batch, fit_batch, on_several_replicas
from tfdist.training.workers.same_call import watch_calls
from tfdist.training.workers.same_model import naming_other_variables

_log = logging.getLogger("tfdist")
_OF_SERVERS = ("device", "memory_growth", "start_timeout")
_started: list[tuple[dict[str, Any], Any]] = []  # the arguments of the first call, and its strategy


def start(
    strategy: StrategyName = "auto",
    *,
    cluster: ClusterConfig | None = None,
    workers: int = 0,
    ps: int = 0,
    heartbeat_timeout: float | None = None,
    stall_timeout: StallTimeout = "off",
    **options: Any,
) -> Any:
    """Read the cluster from the environment, and return the strategy that trains on it.

    Call it right after the imports. A ps task, or a worker beside one, serves the chief in this call, and its
    process ends with the chief. The chief and mirrored workers return and run the rest of the script. In a
    process that is part of no cluster, the strategy is that of one process.

    The call enters the strategy's scope for the rest of the script: models need no `with strategy.scope()`.
    From here on, the methods `fit`, `evaluate`, `predict` and `predict_on_batch` of Keras's models are those
    of tfdist, and with Keras 3 `train_on_batch` and `test_on_batch` too. An uncaught exception of tfdist
    prints one line instead of a traceback, and the process ends with the exit status of that exception.

    A second call with the same arguments returns the same strategy.

    Args:
        strategy: The strategy; "auto" chooses by the cluster and the devices.
        cluster: The cluster and the task of this process; None to read TF_CONFIG or a scheduler's variables.
        workers: How many workers to start beside this process.
        ps: How many parameter servers to start, at least 1 for any worker.
        heartbeat_timeout: Seconds without an answer after which a serving task counts the chief as lost, and
            the chief of ps tasks one of its tasks; 60 if None. It ends with 138 then, or continues without
            that one if it is an asynchronous worker. Mirrored workers count each other as lost after this
            time too, and after 10 seconds if None.
        stall_timeout: Seconds that a step or callback of `fit` may take before its process counts as stuck,
            and ends with 138; auto, to derive them from the steps; off, with which one can use a debugger.
        options: As for `make_strategy`.

    Raises:
        ConfigError: Cluster, strategy and options do not fit together, or this task's port is taken. An
            evaluator has no part in a script: it would train a second model.
        TaskLost: A task did not start in time.
        SystemExit: This task has served the chief, which has ended.
    """
    timeouts = {"heartbeat_timeout": heartbeat_timeout, "stall_timeout": stall_timeout}
    wanted = {
        "strategy": strategy,
        "cluster": cluster,
        "workers": workers,
        "ps": ps,
        **timeouts,
        **options,
    }
    if _started:
        return _started_with(wanted)
    print_own_errors_in_a_line()
    check_is_cluster("start", cluster)
    if heartbeat_timeout is not None:
        check_heartbeat_timeout("start", heartbeat_timeout)
    silence_limit = 60.0 if heartbeat_timeout is None else heartbeat_timeout
    stall_timeout = checked_timeout("start: stall_timeout", stall_timeout)
    cluster = ClusterConfig.from_environment() if cluster is None else cluster
    if not cluster.serves:
        _warn_of_wrapped_methods()
    if workers or ps:
        own = {name: value for name, value in options.items() if name in _OF_SERVERS}
        cluster = _cluster_beside(cluster, workers, ps, {"heartbeat_timeout": silence_limit, **own})
    if cluster.is_evaluator:
        problem = "is the evaluator, which has no part in a script: it would train a model of its own"
        remedy = "Leave it out of the cluster, or train with a config, whose checkpoints it evaluates"
        raise ConfigError("start", f"this process {problem}", remedy=remedy)
    if cluster.serves:
        own = {name: options[name] for name in _OF_SERVERS if options.get(name) is not None}
        serve(cluster, heartbeat_timeout=silence_limit, **own)
        raise SystemExit(0)
    if cluster.ps:  # it is for the workers' GPUs: the chief itself computes nothing
        options.pop("memory_growth", None)
    elif len(cluster.training().tasks()) > 1:
        options["heartbeat_timeout"] = heartbeat_timeout
    made = make_strategy(cluster, strategy, **options)
    if (transfer := ps_transfer_of(made)) is not None and transfer.is_encrypted:
        _log.warning("TLS covers the steps of fit; a loop with strategy.run would send variables without it")
    enter_for_good(made)
    watch_calls(made)
    watch_variables_and_data(made)
    # Both last for the rest of the script.
    StallWatch.of(cluster, stall_timeout).__enter__()
    if cluster.ps:  # mirrored workers are watched by TensorFlow
        spared = ["worker"] if is_asynchronous(made) else []
        Watcher(cluster, heartbeat_timeout=silence_limit, spared=spared).__enter__()
    _replace_methods_of_keras()
    _started.append((wanted, made))
    return made


def _started_with(wanted: dict[str, Any]) -> Any:
    """Return the first call's strategy if the arguments are the same: a notebook's cell may run again."""
    before, made = _started[0]
    if wanted != before:
        problem = "this process has started with other arguments, and TensorFlow connects a process once"
        raise ConfigError("start", problem, remedy="Start a new process, or restart the notebook's kernel")
    return made


def _cluster_beside(given: ClusterConfig, workers: int, ps: int, options: Mapping[str, Any]) -> ClusterConfig:
    """Start tasks on this machine that serve this process, and return their cluster."""
    if given:
        problem = "workers and ps start a new cluster, but this process is part of one already"
        raise ConfigError("start", problem, remedy="Leave them out under tfdist launch or a scheduler")
    if not workers or not ps:
        remedy = "For mirrored workers, use tfdist launch, or tfdist.notebook_launcher in a notebook"
        expected = "at least one worker and one ps"
        raise ConfigError("start", expected=expected, received=f"workers={workers}, ps={ps}", remedy=remedy)
    # The tasks, on this machine too, would end with the same error, and this process would wait for them.
    check_device(options.get("device", "auto"), memory_growth=options.get("memory_growth"))
    folder = new_run_folder("start")
    cluster = start_servers(workers, ps, folder, options)
    _log.warning("%d tasks on this machine serve this process; logs: %s", workers + ps, folder / "logs")
    return cluster


def _replace_methods_of_keras() -> None:
    """Replace `model.fit`, `evaluate` and `predict` by those of tfdist, for all models of this process."""
    for model in _models_of_keras():
        for function in (fit, evaluate, predict):
            name = function.__name__
            setattr(model, name, _as_method(function, getattr(model, name)))
        model.predict_on_batch = on_several_replicas(predict_on_batch, model.predict_on_batch)
    keras = sys.modules.get("keras")
    if keras is not None and not keras.__version__.startswith("2."):  # Keras 2's own split a batch
        save_and_load_outside_scopes()
        for name, on_batch in (("train_on_batch", fit_batch), ("test_on_batch", evaluate_batch)):
            setattr(keras.Model, name, on_several_replicas(on_batch, getattr(keras.Model, name)))


def _models_of_keras() -> set[Any]:
    """Return the classes of models of each Keras that this process has imported."""
    known = [sys.modules.get(name) for name in ("keras", "tf_keras")]
    return {tf.keras.Model, *(keras.Model for keras in known if keras is not None)}


def _as_method(function: Callable[..., Any], of_keras: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tfdist as a method that has the signature of Keras's own.

    Tools that wrap Keras's methods find the arguments of a call by it, and skip `self` by its name.
    """

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__signature__ = inspect.signature(of_keras)  # type: ignore[attr-defined]
    return method


def _warn_of_wrapped_methods() -> None:
    """Name methods that another library has wrapped: they are replaced, and its wrapper has no effect."""
    for model in _models_of_keras():
        for function in (fit, evaluate, predict):
            name = function.__name__
            wrapped_by = getattr(getattr(model, name), "__globals__", {}).get("__name__", "another library")
            if wrapped_by.partition(".")[0] not in ("keras", "tf_keras", "tensorflow", "tfdist"):
                _log.warning(
                    "%s has replaced Model.%s, and has no effect any more: call tfdist.start() before it",
                    wrapped_by,
                    name,
                )


def watch_variables_and_data(strategy: tf.distribute.Strategy) -> None:
    """Count the variables that this process makes from now on, as its calls of tfdist are counted.

    Also check the data that loops of the script's own split among the workers.
    """
    watch = watch_calls(strategy)
    if watch is None or not isinstance(strategy, MultiWorkerMirrored):
        return

    @contextlib.contextmanager
    def while_making(name: str) -> Iterator[None]:
        lost = naming_lost_tasks(f"the variable {name}", strategy)
        with watch.variable(name), lost, naming_other_variables(name):
            yield

    def check_split(dataset: tf.data.Dataset) -> None:
        policy = dataset.options().experimental_distribute.auto_shard_policy
        policies = tf.data.experimental.AutoShardPolicy
        has_own = policy in (policies.OFF, policies.FILE)  # each worker reads data or files of its own
        if not watch.state.inside and not has_own:  # fit checks its data by itself
            check_order(dataset, instead="")

    strategy.while_making, strategy.check_split = while_making, check_split
