"""Report progress to Kubeflow Trainer, which shows it in the status of a TrainJob.

Trainer sets three variables in the pods of the role that leads; the first pod reports, at most every five
seconds, from a thread of its own. A report that fails never disturbs the training.
"""

import atexit
import functools
import http.client
import json
import logging
import os
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

_log = logging.getLogger("tfdist")

_URL = "KUBEFLOW_TRAINER_SERVER_URL"
_CA_FILE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
_TOKEN_FILE = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105  # the name of a variable with a path
_SECONDS_BETWEEN_REPORTS = 5.0  # as Trainer asks of its clients
_TIMEOUT = 5.0


class _Server(NamedTuple):
    url: str
    ca_file: str
    token_file: str

    def send(self, status: Mapping[str, Any]) -> None:
        """Send a status; the token is read each time, because it rotates."""
        with open(self.token_file, encoding="utf-8") as file:
            token = file.read().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = json.dumps({"trainerStatus": status}).encode()
        request = urllib.request.Request(self.url, data, headers)  # noqa: S310  # https only
        context = ssl.create_default_context(cafile=self.ca_file)
        # Without proxies: the server is a service of the same cluster.
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT).close()


class _Reporter:
    """Send the newest report to a server, from a thread."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._changed = threading.Condition()
        self._newest: dict[str, Any] | None = None
        self._is_last = self._has_failed = False
        self._began: tuple[float, int] | None = None
        self._thread = threading.Thread(target=self._run, name="kubeflow-progress", daemon=True)
        self._thread.start()
        atexit.register(self._finish)

    def report(self, step: int, steps: int | None, metrics: Mapping[str, float | None]) -> None:
        """Replace the report that waits to be sent."""
        now = time.monotonic()
        if self._began is None:
            self._began = now, step
        status: dict[str, Any] = {
            "lastUpdatedTime": datetime.now().astimezone().isoformat(timespec="seconds"),
            "metrics": [
                {"name": name, "value": f"{value:g}"} for name, value in metrics.items() if value is not None
            ],
        }
        if steps:
            status["progressPercentage"] = min(100, 100 * step // steps)
        if steps and step > self._began[1]:
            seconds_per_step = (now - self._began[0]) / (step - self._began[1])
            status["estimatedRemainingSeconds"] = max(0, round((steps - step) * seconds_per_step))
        with self._changed:
            self._newest = status
            self._changed.notify()

    def _run(self) -> None:
        sent_at = float("-inf")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._is_last)
                pause = sent_at + _SECONDS_BETWEEN_REPORTS - time.monotonic()
                self._changed.wait_for(lambda: self._is_last, timeout=max(0.0, pause))
                status, self._newest = self._newest, None
            if status is not None:
                self._send(status)
                sent_at = time.monotonic()
            elif self._is_last:
                return

    def _send(self, status: Mapping[str, Any]) -> None:
        try:
            self._server.send(status)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not self._has_failed:
                _log.warning("the progress cannot be reported to Kubeflow Trainer: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False

    def _finish(self) -> None:
        """Send the last report before the process ends."""
        with self._changed:
            self._is_last = True
            self._changed.notify()
        self._thread.join(2 * _TIMEOUT)


def report_to_kubeflow(step: int, steps: int | None, metrics: Mapping[str, float | None]) -> None:
    """Report steps and figures, if this is the first pod of a TrainJob; a figure that is None is left out."""
    if (reporter := _reporter()) is not None:
        reporter.report(step, steps, metrics)


@functools.cache
def _reporter() -> _Reporter | None:
    values = [os.environ.get(name, "") for name in (_URL, _CA_FILE, _TOKEN_FILE)]
    if not all(values) or os.environ.get("JOB_COMPLETION_INDEX", "0") != "0":
        return None
    if not values[0].startswith("https://"):
        _log.warning("%s is not used: it must begin with https://, or the token could be read", _URL)
        return None
    return _Reporter(_Server(*values))
