"""An API server for kubectl: kmock keeps the objects, and the test sets their states."""

import asyncio
import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Api", "api_server"]

_KINDS = {
    "v1": {"configmaps": "ConfigMap", "persistentvolumeclaims": "PersistentVolumeClaim", "pods": "Pod",
           "secrets": "Secret", "services": "Service"},
    "batch/v1": {"jobs": "Job"},
    "jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
    "kubeflow.org/v1": {"tfjobs": "TFJob"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "trainer.kubeflow.org/v1alpha1": {"trainjobs": "TrainJob", "clustertrainingruntimes": "ClusterTrainingRuntime"},
}  # fmt: skip


class Api:
    """What the server has, and how kubectl reaches it.

    Attributes:
        environ: The variables with which kubectl reaches it.
    """

    def __init__(self, emulator: Any, folder: Path) -> None:
        self._emulator = emulator
        self._pods: list[dict[str, Any]] = []
        for version, kinds in _KINDS.items():
            for plural, kind in kinds.items():
                emulator.resources[f"{version}/{plural}"] = {
                    "kind": kind,
                    "singular": kind.lower(),
                    "namespaced": kind != "ClusterTrainingRuntime",
                    "verbs": ["get", "list", "create", "patch", "delete"],
                }
        emulator["get /api/v1"] << _core()  # the emulator's own has a name that kubectl does not know
        emulator["get /api/v1/namespaces/default/pods"] << self._list
        (folder / "bin").mkdir()
        # The emulator has no schemas with which kubectl could check what it sends.
        text = '#!/bin/sh\n[ "$1" = apply ] && set -- "$@" --validate=false\nexec {} "$@"\n'
        (folder / "bin" / "kubectl").write_text(text.format(shutil.which("kubectl")))
        (folder / "bin" / "kubectl").chmod(0o755)
        self.environ = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "HOME": str(folder),
        }

    def kinds(self) -> dict[str, list[str]]:
        """Return the names of the objects that exist, by kind."""
        found: dict[str, list[str]] = {}
        for one in self._emulator.objects.values():
            if not one.deleted:
                found.setdefault(one.raw["kind"], []).append(one.raw["metadata"]["name"])
        return {kind: sorted(names) for kind, names in found.items()}

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object."""
        return self._find(kind, name).raw

    def forget(self, resource: str) -> None:
        """Lack a kind of objects, as where it is not installed."""
        del self._emulator.resources[resource]

    def set_status(self, kind: str, name: str, **status: Any) -> None:
        """Set the status of an object, as its controller does."""
        self._find(kind, name).patch({"status": status})

    def _find(self, kind: str, name: str) -> Any:
        alive = [one for one in self._emulator.objects.values() if not one.deleted]
        return next(one for one in alive if (one.raw["kind"], one.raw["metadata"]["name"]) == (kind, name))

    def add_pod(
        self, name: str, template: dict[str, Any], text: str, labels: dict[str, str], phase: str = "Running"
    ) -> None:
        """Add a pod of a template, with more labels, and what it has printed."""
        metadata = {"name": name, "namespace": "default", "creationTimestamp": f"2026-01-01T00:00:{len(self._pods):02}Z",
                    "labels": {**template["metadata"]["labels"], **labels}}  # fmt: skip
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": template["spec"],
            "status": {"phase": phase},
        }
        self._pods.append(pod)
        path = f"get /api/v1/namespaces/default/pods/{name}"
        self._emulator[path] << pod
        self._emulator[f"{path}/log"] << text.encode()

    def _list(self, request: Any) -> dict[str, Any]:
        selector = dict(pair.split("=") for pair in request.params["labelSelector"].split(","))
        items = [pod for pod in self._pods if selector.items() <= pod["metadata"]["labels"].items()]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}


def _core() -> dict[str, Any]:
    verbs = ["get", "list", "create", "patch", "delete"]
    resources = [
        {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": True, "verbs": verbs}
        for plural, kind in _KINDS["v1"].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": resources}


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[Api]:
    """Run the server in a thread."""
    import kmock

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[Any, Any]:
        emulator = await kmock.KubernetesEmulator().__aenter__()
        return emulator, await kmock.Server(emulator).__aenter__()

    try:
        emulator, server = asyncio.run_coroutine_threadsafe(start(), loop).result()
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": str(server.url)}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        }  # fmt: skip
        (folder / "config").write_text(json.dumps(config))
        try:
            yield Api(emulator, folder)
        finally:
            for one in (server, emulator):
                asyncio.run_coroutine_threadsafe(one.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
