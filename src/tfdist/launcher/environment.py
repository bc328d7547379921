"""Compute the environment variables of a task of a cluster on this machine."""

import os
import re
from collections.abc import Iterable, Mapping

from tfdist._utils import stop_signals_from_environment
from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.launcher.onednn_variables import onednn_variables
from tfdist.launcher.share_cores_and_gpus import Cores

# The variable of all tasks of a launch, also of those that it starts again: their checkpoints are its own.
START = "TFDIST_START"
ENGINE = "TFDIST_ENGINE"  # marks a task that an engine has started, with the threads of the config
DEFAULT_GRACE = 30.0  # as Kubernetes and Slurm have it
GRACE = "TFDIST_GRACE"  # the seconds that a launcher gives its tasks to end after SIGTERM
LAUNCH = "TFDIST_LAUNCH"  # marks every descendant of the tasks of a launch
# The variable with the secret that only the tasks of a launch know.
SECRET = "TFDIST_SECRET"  # noqa: S105

# Variables with which schedulers describe their own cluster would contradict a task's TF_CONFIG.
_CLUSTER_VARIABLES = re.compile(
    r"CLUSTER_SPEC|SM_(HOSTS|CURRENT_HOST|RESOURCE_CONFIG)|(SLURM|OMPI|PMI|PMIX)_.*"
    r"|SKYPILOT_(NODE_IPS|NODE_RANK|NUM_NODES)|JOB_COMPLETION_INDEX|JOBSET_NAME|REPLICATED_JOB_NAME"
    r"|TFDIST_(SERVICE|HOSTS|ROLES|(LOG_)?PROGRESS|PROGRESS_FILE|JOB_NUMBER|JOB_SCRIPT)|TF_CONFIG"
)
_PYTHON_VARIABLES = {
    "PYTHONUNBUFFERED": "1",  # otherwise SIGKILL loses the last lines
    "PYTHONFAULTHANDLER": "1",  # the log of a crash in TensorFlow's C++ ends with Python's traceback
}
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # of gRPC
_NO_PROXY, _THIS_MACHINE = "no_grpc_proxy", ("127.0.0.1", "localhost", "::1")
_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


def task_environment(
    cluster: ClusterConfig,
    task: Task,
    share: Cores,
    defaults: Mapping[str, str],
    wanted: Mapping[str, str] | None,
    *,
    is_width_forced: bool,
) -> dict[str, str]:
    """Return the variables of a task: those of this process, its TF_CONFIG and its share of the machine.

    Args:
        cluster: The cluster.
        task: The task.
        share: The task's cores and GPUs.
        defaults: Variables that override those of this process.
        wanted: Variables that override all but TF_CONFIG.
        is_width_forced: Whether the share's threads override the thread variables of this process.
    """
    width = share.environment()
    forced = width if is_width_forced else {}
    given = {**inherited_variables(), **defaults, **share.visible(), **forced, **(wanted or {})}
    own = {"TF_CONFIG": cluster.tf_config_json(*task)}
    return {**width, **default_variables(), **given, **own}


def thread_variables(threads: int | None) -> dict[str, str]:
    """Return the variables with the threads of an operation of a task, if a config asks for a number."""
    return {} if threads is None else dict.fromkeys(_THREAD_VARIABLES, str(threads))


def default_variables() -> dict[str, str]:
    """Return the variables that every task has unless the user has set them."""
    return {**onednn_variables(), **_PYTHON_VARIABLES}


def inherited_variables(hosts: Iterable[str] = ()) -> dict[str, str]:
    """Return this process's variables, without those that describe another cluster.

    Args:
        hosts: The hosts that tasks reach without a proxy, besides this machine.
    """
    kept = {name: value for name, value in os.environ.items() if not _CLUSTER_VARIABLES.fullmatch(name)}
    signals = (
        {stop_signals_from_environment.VARIABLE: value}
        if (value := stop_signals_from_environment.variable_for_tasks())
        else {}
    )
    return {**kept, **signals, _NO_PROXY: _hosts_without_proxy(hosts)}


def reach_directly(cluster: ClusterConfig) -> None:
    """Reach the hosts of a cluster without a proxy from now on; TensorFlow must not be connected yet."""
    if any(os.environ.get(name) for name in _PROXIES):
        hosts = (split_address(cluster.address(task))[0] for task in cluster.tasks())
        os.environ[_NO_PROXY] = _hosts_without_proxy(hosts)


def _hosts_without_proxy(hosts: Iterable[str]) -> str:
    """Return the value of no_grpc_proxy with some hosts more.

    With http_proxy set, TensorFlow's servers try to reach each other through the proxy, even on one machine.
    If no_grpc_proxy is set, gRPC does not read no_proxy, so no_grpc_proxy must contain both.
    """
    given = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
    return ",".join(dict.fromkeys(filter(None, [*given.split(","), *_THIS_MACHINE, *hosts])))
