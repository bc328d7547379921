"""Start the tasks that serve this process, their chief, on this machine; they end when it ends."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tfdist._utils.write_files import storage_errors
from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.environment import SECRET, task_environment
from tfdist.launcher.share_cores_and_gpus import share_cores
from tfdist.launcher.task_logs import task_log_path

# The chief has the other end of standard input. The kernel closes it when the chief ends, whatever the
# reason.
_SERVE = """
import os, sys, threading
def end_with_chief():
    sys.stdin.buffer.read()
    os._exit(0)
threading.Thread(target=end_with_chief, daemon=True).start()
import tfdist
tfdist.start(**OPTIONS)
"""
_processes: list[subprocess.Popen[bytes]] = []  # kept, or their standard input would be closed


def start_servers(workers: int, ps: int, run_dir: Path, options: Mapping[str, object]) -> ClusterConfig:
    """Start parameter servers and workers, and return their cluster, whose chief is this process.

    The tasks write their logs to `run_dir/logs`, and call `tfdist.start` with these options.

    Raises:
        StorageError: The logs cannot be written.
    """
    cluster = ClusterConfig.local(workers=workers, ps=ps)
    shares = share_cores(cluster)
    # The launcher sets a secret for its tasks. Here this process, which is the chief, needs it too.
    os.environ.setdefault(SECRET, os.urandom(32).hex())
    logs = run_dir / "logs"
    with storage_errors(logs):
        logs.mkdir(parents=True, exist_ok=True)
    for task in cluster.tasks():
        if task == cluster.lead:
            continue
        environment = task_environment(
            cluster, task, shares[task], {"TF_CPP_MIN_LOG_LEVEL": "2"}, None, is_width_forced=False
        )
        log = task_log_path(run_dir, task)
        with storage_errors(log), log.open("ab") as output:
            _processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", _SERVE.replace("OPTIONS", repr(dict(options)))],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches only the chief
                )
            )
    return cluster.with_task("chief", 0)
