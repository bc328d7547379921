"""Run a cluster on checked hosts: the launcher, each of whose tasks is a connection to a host.

python -m tfdist.engines.ssh.launch RUN_DIR < plan.json
"""

import sys
from pathlib import Path

import msgspec

from tfdist.cluster.addresses_and_free_ports import join_address
from tfdist.cluster.config import ClusterConfig, Task
from tfdist.engines.ssh.check_hosts import check_hosts
from tfdist.engines.ssh.plan_file import PLAN, Plan, write_private
from tfdist.errors import exit_with_status
from tfdist.launcher.launch_tasks import SECONDS_FOR_THE_EVALUATOR, launch

_SECONDS_TO_CLOSE = 15.0  # after the grace of the task itself


def main(run_dir: Path, plan: Plan) -> None:
    """Run the tasks of a plan, and wait until all have ended."""
    path = run_dir.absolute() / "ssh.json"
    path.unlink(missing_ok=True)
    write_private(path, plan.as_text().encode())
    hosts, problems = check_hosts(plan)
    if problems:
        raise problems[0]
    cluster = cluster_on(plan, {host: found.ports for host, found in hosts.items()})
    addresses = ", ".join(cluster.address(task) for task in cluster.tasks())
    print(f"tfdist: {addresses} must be closed to others: see docs/security.md", flush=True)
    launch(
        cluster,
        [sys.executable, "-m", "tfdist.engines.ssh.task_over_connection"],
        run_dir=run_dir,
        env={PLAN: str(path)},
        network_isolation="never",
        grace=plan.grace + _SECONDS_TO_CLOSE,
        linger=SECONDS_FOR_THE_EVALUATOR if cluster.evaluator else None,
        restarts=plan.restarts,
        alone=plan.alone,
        elsewhere=True,
    )


def cluster_on(plan: Plan, ports: dict[str, list[int]]) -> ClusterConfig:
    """Return the cluster of a plan whose hosts have these free ports."""
    free = {host: iter(numbers) for host, numbers in ports.items()}
    return ClusterConfig.of_addresses(
        {
            Task.parse(task): join_address(plan.addresses[host], next(free[host]))
            for task, host in plan.tasks.items()
        }
    )


if __name__ == "__main__":
    exit_with_status(lambda: main(Path(sys.argv[1]), msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
