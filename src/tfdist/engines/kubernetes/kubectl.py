"""Ask kubectl for objects, and have it delete them, in the namespace and context of a job."""

import json
import re
from collections.abc import Sequence
from urllib.parse import unquote

from tfdist.engines.client_command import run_client
from tfdist.engines.job_handle_and_state import Submission
from tfdist.engines.kubernetes.objects import Object
from tfdist.errors import ConfigError, one_line

_NOTE = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ ")  # a line of kubectl's own log


def list_objects(submission: Submission, kind: str, selector: str) -> list[Object]:
    """Return the objects of a kind that a selector chooses."""
    objects: list[Object] = json.loads(
        run_kubectl("get", kind, *within(submission), selector, "--output=json")
    )["items"]
    return objects


def get_objects(submission: Submission, *names: str) -> list[Object]:
    """Return the objects of these names, as kind/name, without those that do not exist."""
    answer = run_kubectl("get", *within(submission), "--ignore-not-found", "--output=json", *names)
    found = json.loads(answer) if answer.strip() else {"items": []}
    objects: list[Object] = found.get("items", [found])
    return objects


def delete_objects(submission: Submission, objects: Sequence[str]) -> str:
    """Delete objects; return what kubectl says of those that existed."""
    return run_kubectl("delete", *within(submission), "--ignore-not-found", "--wait=false", *objects)


def within(submission: Submission) -> tuple[str, ...]:
    """Return the flags that name the namespace and the context of a job."""
    namespace, _, context = submission.handle.place.partition("@")
    return (f"--namespace={namespace}", *([f"--context={unquote(context)}"] if context else []))


def run_kubectl(*words: str, text: str | None = None) -> str:
    """Run kubectl; return its output.

    Raises:
        ConfigError: There is no kubectl, or it refuses what it is asked for.
    """
    remedy = "Install it, and let it reach the cluster: https://kubernetes.io/docs/tasks/tools"
    done = run_client(["kubectl", *words], "kubectl", remedy, text=text)
    if done.returncode:
        # Without a server, kubectl logs each of its attempts before it says what is wrong.
        lines = [line for line in done.stderr.splitlines() if not _NOTE.match(line)]
        problem = one_line("\n".join(lines)) or f"exited with {done.returncode}"
        raise ConfigError(f"kubectl {words[0]}", problem)
    return done.stdout
