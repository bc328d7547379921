"""Run a cluster on this machine in the background: `tfdist train` or `tfdist launch`, detached."""

import sys
from collections.abc import Iterator, Mapping

from tfdist.engines import background
from tfdist.engines.job_description import SHELL_RUN_DIR, Job, shell_command
from tfdist.engines.job_handle_and_state import Submission
from tfdist.errors import ConfigError, did_you_mean

_OPTIONS = (
    "restarts",
    "grace",
    "threads",
    "pin",
    "network_isolation",
)  # of `launch:`, and flags of `tfdist launch`
_FOR_SCRIPTS = {"restarts": "3"}  # as with a config, and on other engines


class Local(background.BackgroundEngine):
    """The launcher of this machine, without a terminal."""

    name = "local"

    def render(self, job: Job, options: Mapping[str, str]) -> str:
        """Return the script that runs the job in the foreground."""
        command = shell_command(_command(job, options))
        return background.script(self.name, job, command, has_launcher=not job.is_single)

    def submit(self, job: Job, options: Mapping[str, str]) -> Submission:
        """Start the script in a session of its own."""
        script, has_launcher = self.render(job, options), not job.is_single
        return background.submit(self.name, job, script, has_launcher=has_launcher, copies_run=has_launcher)


def _command(job: Job, options: Mapping[str, str]) -> Iterator[str]:
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError("--option", f"there is no {name}", remedy=did_you_mean(name, _OPTIONS))
    words = job.words(python=sys.executable, run_dir=job.shell_place)
    if job.config is not None:
        yield from words
        yield from (f"--set=launch.{name}={value or 'true'}" for name, value in options.items())
        return
    yield from (sys.executable, "-m", "tfdist", "launch", "--run_dir", SHELL_RUN_DIR)
    yield f"--workers={job.counts.get('worker', 0)}"
    yield f"--ps={job.counts.get('ps', 0)}"
    yield from (f"--alone={role}" for role in job.alone)
    flags = {**_FOR_SCRIPTS, **options}
    yield from (f"--{name}={value}" if value else f"--{name}" for name, value in flags.items())
    yield from ("--", *words)
