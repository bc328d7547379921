"""Run a function of a notebook as every task of a cluster on this machine.

As a program, it is one of these tasks, and calls a function that a notebook, or Ray's driver, has sent.
"""

import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tfdist._utils.new_run_folder import new_run_folder
from tfdist._utils.write_files import temporary_folder
from tfdist.cluster.config import ClusterConfig
from tfdist.errors import ConfigError, shown
from tfdist.launcher.launch_tasks import NetworkIsolation, launch
from tfdist.launcher.supervisor.fork_server import fork_tasks

_Result = TypeVar("_Result")
EVERY_TASK = "every_task"


def notebook_launcher(
    function: Callable[..., _Result],
    args: Sequence[Any] = (),
    *,
    workers: int = 2,
    ps: int = 0,
    run_dir: Path | str | None = None,
    threads: int | None = None,
    restarts: int = 0,
    alone: Collection[str] = (),
    network_isolation: NetworkIsolation = "auto",
) -> _Result:
    """Call a function in a process for each task of a cluster on this machine, and return the chief's result.

    The function takes the place of a script: it begins with `tfdist.start()`. It may be defined in the
    notebook, and is sent with the globals that it uses. So it should create its models, and read large
    data, itself. If it calls `sys.exit(0)`, the result is None. The notebook shows what the tasks print, as
    they print it. Interrupting the kernel ends all tasks.

    Args:
        function: The function that each task calls.
        args: The function's arguments.
        workers: The number of workers.
        ps: The number of parameter servers; if there are any, there is also a chief.
        run_dir: The folder of the logs; None for a new folder in `runs/`.
        threads: The threads of each task; None to divide the cores among the tasks.
        restarts: How often lost tasks are started again; a new checkpoint renews it.
        alone: The types of tasks that are started again alone.
        network_isolation: Whether the tasks run in a private network.

    Raises:
        ConfigError: cloudpickle is not installed, or the function cannot be sent to other processes.
        LaunchError: A task failed; the message names its log.
    """
    if not callable(function):
        raise ConfigError("notebook_launcher", expected="a function", received=shown(function))
    cloudpickle = _cloudpickle()
    cluster = ClusterConfig.local(workers=workers, ps=ps)
    sent = pickled(function, args, "notebook_launcher")
    folder = Path(run_dir) if run_dir else new_run_folder("notebook")
    with temporary_folder("tfdist-") as scratch:
        call, result = Path(scratch, "call"), Path(scratch, "result")
        call.write_bytes(sent)
        launch(
            cluster,
            [sys.executable, "-m", "tfdist.launcher.notebook", str(call), str(result)],
            run_dir=folder,
            threads=threads,
            restarts=restarts,
            alone=alone,
            network_isolation=network_isolation,
            loads_once=True,
        )
        # A function that calls sys.exit(0) ends its task well, without a result.
        returned: Any = cloudpickle.loads(result.read_bytes()) if result.exists() else None
    return returned  # type: ignore[no-any-return]


def _cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError:
        problem = "needs cloudpickle, which is not installed"
        raise ConfigError("notebook_launcher", problem, remedy="pip install 'tfdist[notebook]'") from None
    return cloudpickle  # type: ignore[no-any-return]


def pickled(function: Callable[..., Any], args: Sequence[Any], where: str) -> bytes:
    """Return a function and its arguments as `main` reads them; `where` begins the message of an error."""
    cloudpickle = _cloudpickle()
    try:
        return bytes(cloudpickle.dumps((function, tuple(args))))
    except Exception as error:
        remedy = "Create models and data sets, and open files, inside the function"
        raise ConfigError(where, f"the function cannot be sent: {error}", remedy=remedy) from error


def main(call: str, result: str, who: str = "chief") -> None:
    """Call the function in one file, and write the result to the other: the chief's, or each task's own."""
    import cloudpickle

    function, args = cloudpickle.loads(Path(call).read_bytes())
    returned = function(*args)
    if who == EVERY_TASK or ClusterConfig.from_environment().is_chief:
        Path(result).write_bytes(cloudpickle.dumps(_without_model(returned)))


def _without_model(returned: Any) -> Any:
    """Return a result; remove a Keras History's model, which belongs to the task's strategy."""
    if hasattr(returned, "set_model"):
        returned.set_model(None)
    return returned


if __name__ == "__main__":
    # Only errors of TensorFlow's C++ belong into a cell's output.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    fork_tasks("tfdist.training.fit")
    main(*sys.argv[1:])
