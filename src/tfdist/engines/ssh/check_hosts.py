"""Ask hosts at the same time whether they can run tasks: their folder, Python, versions and free ports."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

import tfdist
from tfdist.engines.client_command import run_client
from tfdist.engines.ssh.plan_file import NO_CONNECTION, NO_FOLDER, NO_PYTHON, NO_SETUP, Plan
from tfdist.errors import ConfigError, TfdistError

_SECONDS_TO_CHECK = 120.0  # to connect, and for Python to start on a busy machine
_AT_ONCE = 64


class FoundHost(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of a host's packages (empty if it lacks one), and free ports, as the host tells."""

    tfdist: str
    tensorflow: str
    keras: str
    ports: list[int]


class Checked(NamedTuple):
    """The hosts that can run tasks, and the problems of the others."""

    hosts: dict[str, FoundHost]
    problems: list[ConfigError]


def check_hosts(plan: Plan) -> Checked:
    """Ask all hosts of a plan at the same time."""
    names = list(plan.addresses)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(names, pool.map(lambda host: _ask(plan, host), names), strict=True))
    hosts = {host: answer for host, answer in answers.items() if isinstance(answer, FoundHost)}
    problems = [answer for answer in answers.values() if isinstance(answer, ConfigError)]
    for host in list(hosts):
        if problem := _wrong_version(host, hosts):
            problems.append(problem)
    return Checked(hosts, problems)


def _ask(plan: Plan, host: str) -> FoundHost | ConfigError:
    """Return what a host tells, or its problem."""
    words = plan.words_for(host, "check", str(len(plan.tasks_on(host))))
    try:
        done = run_client(words, "ssh", "Install the OpenSSH client", text="", timeout=_SECONDS_TO_CHECK)
    except ConfigError as error:
        return error
    except TfdistError as error:
        return ConfigError(host, error.problem)
    if done.returncode == 0:
        try:
            return msgspec.json.decode(done.stdout.splitlines()[-1], type=FoundHost)
        except (msgspec.MsgspecError, IndexError):
            return ConfigError(host, expected="what tfdist tells of a host", received=repr(done.stdout[-80:]))
    return _problem(plan, host, done.returncode, done.stderr.splitlines())


def _problem(plan: Plan, host: str, status: int, messages: Sequence[str]) -> ConfigError:
    last = next((line.strip() for line in reversed(messages) if line.strip()), f"exited with {status}")
    if status == NO_CONNECTION:
        remedy = f"`ssh -o ControlPath=none {host} true` must work without a password"
        return ConfigError(host, f"cannot be reached: {last.removeprefix('ssh: ')}", remedy=remedy)
    if status == NO_FOLDER:
        remedy = "Copy the code there, or set engine.ssh.folder"
        return ConfigError(host, f"has no folder {plan.folder}", remedy=remedy)
    if status == NO_SETUP:
        return ConfigError(host, f"a line of setup has failed: {last}", remedy="See engine.ssh.setup")
    if status == NO_PYTHON:
        remedy = "Make a virtual environment there, or set engine.ssh.python"
        return ConfigError(host, f"has no {plan.python}", remedy=remedy)
    if "No module named" in last:
        remedy = f"Install tfdist {tfdist.__version__} there"
        return ConfigError(host, f"{plan.python} has no tfdist, or another version ({last})", remedy=remedy)
    return ConfigError(host, last)


def _wrong_version(host: str, hosts: dict[str, FoundHost]) -> ConfigError | None:
    first = next(iter(hosts))
    for package in ("tfdist", "tensorflow", "keras"):
        received = getattr(hosts[host], package)
        wanted = tfdist.__version__ if package == "tfdist" else getattr(hosts[first], package)
        if not received:
            return ConfigError(host, f"has no {package}", remedy="Install it in the environment there")
        if received != wanted:
            of = "this machine" if package == "tfdist" else first
            remedy = "Install the same version everywhere"
            return ConfigError(
                host, expected=f"{package} {wanted}, that of {of}", received=received, remedy=remedy
            )
    return None
