"""Find why pods do not start, in what Kubernetes tells about them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfdist.errors import one_line

_LONGEST = 300  # characters
_USUAL = ("ContainerCreating", "PodInitializing")  # which pass


def reason_of_pods(pods: Iterable[Mapping[str, Any]]) -> str:
    """Return the first reason for which a pod waits; nothing if there is none yet."""
    return next((_shortened(reason) for pod in pods for reason in _reasons(pod)), "")


def reason_of_events(events: Iterable[Mapping[str, Any]], job: str) -> str:
    """Return the last event that says why a pod of a job was not made; nothing if there is none."""
    found = [event for event in events if event["involvedObject"].get("name", "").startswith(job)]
    last = max(found, key=lambda event: event.get("lastTimestamp") or "", default=None)
    return _shortened(f"{last.get('reason')}: {last.get('message')}") if last else ""


def _reasons(pod: Mapping[str, Any]) -> Iterator[str]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, *_USUAL):
            yield f"pod {name}: {_joined(waiting)}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield f"pod {name}: {_joined(condition)}"


def _joined(one: Mapping[str, Any]) -> str:
    return ": ".join(str(one[key]) for key in ("reason", "message") if one.get(key))


def _shortened(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
