"""Compute the environment variables of a task of a cluster on this machine."""

import os
import re
from collections.abc import Iterable, Mapping

from tfdist._utils import stop_signal_names
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.launcher import onednn
from tfdist.launcher.resources import Cores

__all__ = ["LAUNCH", "SECRET", "inherited_variables", "task_environment"]

LAUNCH = "TFDIST_LAUNCH"  # marks every descendant of the tasks of a launch
# The variable with the secret that only the tasks of a launch know.
SECRET = "TFDIST_SECRET"  # noqa: S105

# Variables with which schedulers describe their own cluster would contradict a task's TF_CONFIG.
_CLUSTER_VARIABLES = re.compile(
    r"CLUSTER_SPEC|SM_(HOSTS|CURRENT_HOST|RESOURCE_CONFIG)|(SLURM|OMPI|PMI|PMIX)_.*"
    r"|SKYPILOT_(NODE_IPS|NODE_RANK|NUM_NODES)|JOB_COMPLETION_INDEX|JOBSET_NAME|REPLICATED_JOB_NAME"
    r"|TFDIST_(SERVICE|HOSTS|ROLES|PROGRESS(_FILE)?|JOB_NUMBER|JOB_SCRIPT)|TF_CONFIG"
)
_PYTHON_VARIABLES = {
    "PYTHONUNBUFFERED": "1",  # otherwise SIGKILL loses the last lines
    "PYTHONFAULTHANDLER": "1",  # the log of a crash in TensorFlow's C++ ends with Python's traceback
}


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
    return {**width, **onednn.variables(), **_PYTHON_VARIABLES, **given, **own}


def inherited_variables(hosts: Iterable[str] = ()) -> dict[str, str]:
    """Return this process's variables, without those that describe another cluster.

    Args:
        hosts: The hosts that tasks reach without a proxy, besides this machine.
    """
    kept = {name: value for name, value in os.environ.items() if not _CLUSTER_VARIABLES.fullmatch(name)}
    # With http_proxy set, TensorFlow's servers try to reach each other through the proxy, even on one
    # machine. If no_grpc_proxy is set, gRPC does not read no_proxy, so no_grpc_proxy must contain both.
    direct = [kept.get("no_grpc_proxy") or kept.get("no_proxy", ""), "127.0.0.1", "localhost", "::1", *hosts]
    signals = {stop_signal_names.VARIABLE: value} if (value := stop_signal_names.variable_for_tasks()) else {}
    return {**kept, **signals, "no_grpc_proxy": ",".join(filter(None, direct))}
