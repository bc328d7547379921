"""Write, for the tasks of a cluster, their TF_CONFIG and the commands that start them."""

from collections.abc import Sequence

from tfdist.cluster.addresses_and_free_ports import split_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.launcher.environment import SECRET
from tfdist.strategies.options import CommunicationOptions
from tfdist.trainer.config import Settings


def plan_text(cluster: ClusterConfig, tasks: Sequence[Task], settings: Settings) -> str:
    """Return, as text, the host and TF_CONFIG of some tasks, and the commands that start them."""
    if not cluster:
        return f"One process, no TF_CONFIG:\n\n    {settings.command()}"
    lines = [f"{len(cluster.tasks())} tasks, from {cluster.source.at()}."]
    if cluster.is_on_ports_of_ours:
        lines += [
            "All on this machine, on ports that tfdist chooses at each start. One command starts them all:"
        ]
        lines += ["", f"    {settings.command()}"]
    else:
        lines += _hint_at_secret(cluster, settings.config.communication)
    for task in tasks:
        host, port = split_address(cluster.address(task)) if cluster.size(task.type) else ("any host", None)
        on = host if port is None else f"{host}, port {port}"
        lines += ["", f"{task} on {on}", f"    TF_CONFIG={cluster.tf_config_json(*task)}"]
        if not cluster.is_on_ports_of_ours:
            lines.append(f"    {settings.command(task)}")
    return "\n".join(lines)


def _hint_at_secret(cluster: ClusterConfig, communication: CommunicationOptions) -> list[str]:
    """Return the line that asks for a secret; none where it has no effect."""
    exchanging = [task for task in cluster.tasks() if task.type != "evaluator"]
    if len(exchanging) < 2 or not communication.may_use_tcp(on_gpus=False):
        return []
    slower = "tensors travel over TensorFlow's slower gRPC"
    without = "the tasks end with status 2" if communication.needs_tcp else slower
    return [f"Set the same {SECRET} for all of them first: without it, {without}."]
