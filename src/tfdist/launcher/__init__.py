"""Run a cluster on this machine: start a process per task, watch it, show its output, and end all of it.

    cluster = ClusterConfig.local(workers=2, ps=1)
    report = launch(cluster, [sys.executable, "train.py"], run_dir=Path("runs/x"))

The tasks are children of a small process, the supervisor (see `supervisor`), which ends them even if this
process is killed. The supervisor writes what a task prints into the task's log file. So neither a slow
terminal nor the end of this process can block a task. The launcher shows what it reads from the logs.
"""

from tfdist.launcher.environment import SECRET
from tfdist.launcher.launch_tasks import launch
from tfdist.launcher.outcome import LaunchError, LaunchReport, TaskExit
from tfdist.launcher.record_events import report_progress
from tfdist.launcher.send_reports import report_silent
from tfdist.launcher.share_cores_and_gpus import Cores, own_cores, own_gpus, share_cores
from tfdist.launcher.supervisor.fork_server import fork_tasks

__all__ = [
    "SECRET",
    "Cores",
    "LaunchError",
    "LaunchReport",
    "TaskExit",
    "fork_tasks",
    "launch",
    "own_cores",
    "own_gpus",
    "report_progress",
    "report_silent",
    "share_cores",
]
