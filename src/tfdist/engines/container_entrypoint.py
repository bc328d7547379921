"""Run a command as one task, in a container of Kubernetes, Compose, Vertex AI or SageMaker.

    python -m tfdist.engines.container_entrypoint python -m tfdist.train --config {config}

In clouds the config comes in environment variables. It is written to a file, whose name is passed for the
word {config}. On SageMaker this also does what no part of the service does:

- It passes the cluster on as SM_RESOURCE_CONFIG, and the folders as SM_MODEL_DIR and so on. Images with
  SageMaker's own toolkit set these variables, others do not.
- It prints the name of the task, by which the lines of the container are found.
- It writes why the task has failed to the file that the service shows.
"""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist._utils.write_files import storage_errors, temporary_folder
from tfdist.cluster.config import ClusterConfig
from tfdist.engines.config_in_variables import write_config
from tfdist.engines.job_description import CONFIG
from tfdist.engines.restart_in_container import RESTARTS, SAVED_STEP_FILE, EndOfChief, RestartedCommand
from tfdist.errors import ConfigError, exit_with_status
from tfdist.launcher.environment import ENGINE, default_variables
from tfdist.launcher.progress_for_engines import PROGRESS_FILE, SAVED_STEP
from tfdist.launcher.supervisor.process_tree import (
    adopt_orphans,
)
from tfdist.trainer.failure_for_sagemaker import clear_failure, failure_file, write_failure
from tfdist.transport.authentication import find_secret

ENTRYPOINT = ("python", "-m", "tfdist.engines.container_entrypoint")
_OPT_ML = Path("/opt/ml")


def main(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command until it has ended for good; return its exit status."""
    environ = {**default_variables(), **_sagemaker_variables(environ), **environ, ENGINE: "1"}
    if not command:
        raise ConfigError("tfdist.engines.container_entrypoint", "needs a command")
    clear_failure(environ)
    with temporary_folder("tfdist-") as folder:
        path = write_config(Path(folder), environ)
        words = [str(path) if word == CONFIG else word for word in command]
        cluster = ClusterConfig.from_environment(environ=environ)
        if "SM_RESOURCE_CONFIG" in environ:
            print(f"tfdist: this container is {cluster.task}", flush=True)
        shared = environ.get(SAVED_STEP_FILE)
        mark = EndOfChief(Path(shared), find_secret(environ)) if shared else None
        leads = cluster.is_chief and not cluster.is_evaluator
        if leads:
            saved = Path(environ.setdefault(SAVED_STEP_FILE, str(Path(folder, SAVED_STEP))))
            environ.setdefault(PROGRESS_FILE, str(saved.with_name("progress.json")))
            with storage_errors(saved.parent):
                saved.parent.mkdir(parents=True, exist_ok=True)
                if mark:
                    mark.remove()
        served = mark if cluster.serves else None
        status, end = RestartedCommand(words, environ, served).run(int(environ.get(RESTARTS, 0)))
        if mark and leads and status == 0:
            with contextlib.suppress(OSError):  # the others then wait, and end all the same
                mark.write()
    failure = failure_file(environ)
    if status and failure is not None and not failure.exists():
        write_failure(environ, f"{' '.join(command)} {end}")
    return status


def _sagemaker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what SageMaker's own toolkit would set; nothing elsewhere."""
    folder = Path(environ.get("SM_INPUT_CONFIG_DIR") or _OPT_ML / "input" / "config")
    path = folder / "resourceconfig.json"
    if not path.is_file():
        return {}
    opt_ml = folder.parents[1]
    return {
        "SM_RESOURCE_CONFIG": path.read_text("utf-8"),
        "SM_MODEL_DIR": str(opt_ml / "model"),
        "SM_OUTPUT_DIR": str(opt_ml / "output"),
        "SM_OUTPUT_DATA_DIR": str(opt_ml / "output" / "data"),
    }


if __name__ == "__main__":
    adopt_orphans()  # to learn how they end
    exit_with_status(lambda: main(sys.argv[1:], os.environ))
