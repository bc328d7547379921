"""Print, for every task of a cluster, its TF_CONFIG and the command to type on its host.

    tfdist plan --config cluster.yaml
    eval "$(tfdist plan --config cluster.yaml --task worker:1 --format export)"

TensorFlow is not loaded.
"""

import json
import shlex
from typing import Annotated, Any, Literal

from tfdist.cli._flags_from_signature import Flag, NeededConfig, run
from tfdist.cli._plan_text import plan_text
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.errors import ConfigError
from tfdist.trainer.config import Settings, read_config


def main(
    config: NeededConfig,
    task: Annotated[str | None, Flag("Only this task, e.g. worker:1.")] = None,
    format: Annotated[
        Literal["text", "json", "export"], Flag("One of text, json, export; export is for a shell's eval.")
    ] = "text",
) -> None:
    """Print the plan of the cluster in a config file, or of one of its tasks."""
    settings = read_config(config)
    cluster = settings.find_cluster(task=task)
    tasks = cluster.tasks() if cluster.task is None or task is None else (cluster.task,)
    if format == "export":
        print(_export(cluster, settings))
    elif format == "json":
        print(json.dumps([_entry(cluster, member, settings) for member in tasks], indent=2))
    else:
        print(plan_text(cluster, tasks, settings))


def _export(cluster: ClusterConfig, settings: Settings) -> str:
    if cluster.task is None:
        raise ConfigError("--format export", "needs one task", remedy="Add --task worker:0")
    if cluster.is_on_ports_of_ours:
        problem = "has the number of tasks, not their addresses: each start uses other ports"
        remedy = f"Write addresses, or start the whole cluster with `{settings.command()}`"
        raise ConfigError(cluster.source.at(), problem, remedy=remedy)
    return f"export TF_CONFIG={shlex.quote(cluster.tf_config_json())}"


def _entry(cluster: ClusterConfig, task: Task, settings: Settings) -> dict[str, Any]:
    return {
        "task": str(task),
        "address": cluster.address(task) if cluster.size(task.type) else None,
        "command": settings.command(None if cluster.is_on_ports_of_ours else task),
        "tf_config": cluster.tf_config(*task),
    }


if __name__ == "__main__":
    run(main)
