"""Start a script of your own as a cluster on this machine, each process with its own TF_CONFIG.

    tfdist launch --workers 2 --ps 1 -- python my_script.py --my_flag

    tfdist launch --job reader=1 --job trainer=3 -- python my_script.py

A chief is added where there is a ps or a job of another name. The script is the same on all tasks; see
examples/keras_script.py and examples/ensemble.py. With --restarts, lost tasks run the script again from its
beginning. To continue, pass tfdist.CheckpointAndResume to fit.
"""

import contextlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from tfdist._utils.check_and_expand_paths import local_path
from tfdist._utils.new_run_folder import claimed_run_folder
from tfdist._utils.readable_text import duration, short_path
from tfdist.cli._check_values import check_utf_8
from tfdist.cli._end_of_run import page_written, print_results
from tfdist.cli._flags_from_signature import Flag, LogFormat, Verbosity, run
from tfdist.cluster.config import ClusterConfig
from tfdist.diagnostics.report.event_analysis import last_results, mean_speed
from tfdist.diagnostics.report.page import PAGE, write_page
from tfdist.diagnostics.report.run_facts import RunFacts, read_run
from tfdist.errors import ConfigError, TfdistError, shown
from tfdist.launcher.console import ScreenOptions
from tfdist.launcher.environment import DEFAULT_GRACE
from tfdist.launcher.launch_tasks import NetworkIsolation, launch
from tfdist.launcher.prometheus_metrics import serving_metrics
from tfdist.profiling.timeline_paths import timelines_in

_APART = (
    "tfdist: WARNING: the script has not called tfdist: unless it reads TF_CONFIG itself, each task has"
    " trained alone. Begin it with tfdist.start()"
)


def main(
    command: Sequence[str],
    workers: Annotated[int | None, Flag("How many workers; 2 where no --job is given.")] = None,
    ps: Annotated[int, Flag("How many parameter servers.")] = 0,
    job: Annotated[
        Sequence[str], Flag("A job of any name and how many tasks, trainer=3; can be repeated.")
    ] = (),
    run_dir: Annotated[
        str | None, Flag("The folder for the logs. Without it, a new folder in runs/.")
    ] = None,
    restarts: Annotated[
        int, Flag("How often tasks that are lost are started again; a new checkpoint renews it.", least=0)
    ] = 0,
    alone: Annotated[
        Sequence[str],
        Flag(
            "A type of tasks that are started again alone, such as worker with asynchronous parameter"
            " servers; can be repeated."
        ),
    ] = (),
    threads: Annotated[
        int | None, Flag("The threads of each task; without it, the tasks share the cores.", least=1)
    ] = None,
    pin: Annotated[bool, Flag("Bind each task that computes to cores of its own.")] = False,
    grace: Annotated[
        float, Flag("The seconds that the tasks have to end after SIGTERM, such as to save.", least=0.1)
    ] = DEFAULT_GRACE,
    network_isolation: Annotated[
        NetworkIsolation,
        Flag(
            "Whether the tasks live in a private network: auto (if this system allows it),"
            " always (or fail), or never."
        ),
    ] = "auto",
    heartbeat_timeout: Annotated[
        float | None,
        Flag(
            "Kill a task that has been stopped for so many seconds, so that it counts as lost;"
            " without it, never.",
            least=0.1,
        ),
    ] = None,
    prometheus_port: Annotated[
        int | None, Flag("The port at which Prometheus finds metrics while the script runs.", 1, 65535)
    ] = None,
    prometheus_address: Annotated[str, Flag("The address that this port listens on.")] = "0.0.0.0",
    log_format: LogFormat = "text",
    verbosity: Verbosity = 0,
) -> None:
    """Run a command as every task of a local cluster."""
    if not command:
        raise ConfigError("command line", "names no command", remedy="Write it last: -- python my_script.py")
    check_utf_8("command line", *command)
    jobs = _jobs(job, {"worker": workers, "ps": ps})
    workers = (0 if jobs else 2) if workers is None else workers
    cluster = ClusterConfig.local(workers=workers, ps=ps, chief=1 if jobs else None, jobs=jobs)
    with contextlib.ExitStack() as stack:
        metrics = stack.enter_context(serving_metrics(prometheus_port, prometheus_address, section="--"))
        named = contextlib.nullcontext(local_path(run_dir, "--run_dir")) if run_dir else None
        folder = stack.enter_context(named or claimed_run_folder("launch"))
        stack.enter_context(page_written(folder, lambda: write_page([folder])))
        report = launch(
            cluster,
            command,
            run_dir=folder,
            restarts=restarts,
            grace=grace,
            alone=alone,
            threads=threads,
            pin=pin,
            network_isolation=network_isolation,
            heartbeat_timeout=heartbeat_timeout,
            screen=ScreenOptions(json=log_format == "json", verbosity=verbosity),
            metrics=metrics,
        )
    if not report.has_joined and len(cluster.tasks()) > 1:
        print(_APART, file=sys.stderr)
    if log_format != "json":
        _print_results(folder, report.seconds)


def _print_results(folder: Path, seconds: float) -> None:
    """Print what is known of the results, the places of the files, and the command that comes next."""
    try:
        facts = read_run(folder)
    except TfdistError:  # its events are gone: the job is done all the same
        facts = RunFacts(folder, str(folder))
    speed, page = mean_speed(facts), folder / PAGE
    rows = [
        ("result", last_results(facts)),
        ("time", duration(seconds)),
        ("speed", "" if speed is None else f"{speed:,.0f} examples/s"),
        ("logs", short_path(folder / "logs")),
        ("report", short_path(page) if page.exists() else ""),
        *(("timeline", short_path(path)) for path in timelines_in(folder)),
        ("compare", f"tfdist report {shlex.quote(short_path(folder))} OTHER_RUN"),
    ]
    print_results(rows)


def _jobs(texts: Sequence[str], counts: Mapping[str, int | None]) -> dict[str, int]:
    """Return how many tasks each job has; `counts` are those of --workers and --ps."""
    jobs: dict[str, int] = {}
    for name, count in map(_counted, texts):
        if name in jobs or counts.get(name):
            problem = f"{shown(name)} has a number of tasks already"
            raise ConfigError("--job", problem, remedy="Name each job once")
        jobs[name] = count
    return jobs


def _counted(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if not re.fullmatch(r"[0-9]{1,4}", count):
        raise ConfigError("--job", expected="a name and how many, such as trainer=3", received=shown(text))
    return name, int(count)


if __name__ == "__main__":
    run(main, takes_command=True)
