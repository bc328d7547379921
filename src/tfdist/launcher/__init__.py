"""Run a cluster on this machine: one process per task, watched, shown, and ended to the last descendant.

    cluster = ClusterConfig.local(workers=2, ps=1)
    report = launch(cluster, [sys.executable, "train.py"], run_dir=Path("runs/x"))

The tasks belong to a small process in between, the warden (see `warden`), which ends them also when this
process is killed. What a task prints is put into its log file there, so that neither a slow terminal nor the
end of this process can block it; what is shown is read from the log.
"""

from tfdist.launcher.cores import Cores, own_cores, own_gpus, share_cores
from tfdist.launcher.local import SECRET, launch
from tfdist.launcher.outcome import LaunchError, LaunchReport, TaskExit
from tfdist.launcher.progress import report_progress, report_silent
from tfdist.launcher.warden.nursery import raise_tasks

__all__ = [
    "SECRET",
    "Cores",
    "LaunchError",
    "LaunchReport",
    "TaskExit",
    "launch",
    "own_cores",
    "own_gpus",
    "raise_tasks",
    "report_progress",
    "report_silent",
    "share_cores",
]
