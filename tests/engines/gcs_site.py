"""Serve Cloud Storage's JSON API on a machine of its own, by the names and the TLS that TensorFlow's client expects.

TensorFlow's client has no variable for another address. So the machines' /etc/hosts lead Google's names to this
server, and CURL_CA_BUNDLE names the authority that has signed its certificate. Without credentials the client is
anonymous. The objects of a bucket are files of a folder, so that a test can look at them.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from machines import Machines

__all__ = ["BucketSite", "bucket_site", "served_buckets", "why_no_buckets"]

NAMES = ("storage.googleapis.com", "www.googleapis.com")
PRIVATE = "private"  # a bucket that exists and that nobody may use
SECONDS_TO_START = 30
_NUMBERS = itertools.count()  # of uploads and of files that are being written


def why_no_buckets() -> str | None:
    """Return why this system cannot serve buckets; None where it can."""
    from machines import why_no_machines

    return why_no_machines() or (None if shutil.which("openssl") else "openssl not found")


class BucketSite:
    """Two machines that use the buckets of a third.

    Attributes:
        folder: A folder of which each folder is a bucket, and each file in it an object.
        machines: The machines, on which commands run.
    """

    def __init__(self, folder, machines, authority):
        self.folder, self.machines, self._authority = folder, machines, authority

    def variables(self):
        """Return the variables with which TensorFlow's client finds and trusts the server."""
        # The client waits for metadata of Google's machines otherwise, and ten times for a server that is gone.
        return {
            "CURL_CA_BUNDLE": str(self._authority),
            "NO_GCE_CHECK": "true",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "1",
        }

    def hold(self, name):
        """Leave uploads of objects whose name ends like this without an answer."""
        (self.folder.parent / "hold").write_text(name)

    def release(self):
        """Answer all uploads again."""
        (self.folder.parent / "hold").unlink()

    def objects(self, prefix, bucket="bucket"):
        """Return the objects of a bucket whose names begin like this, by the rest of their names."""
        names = {urllib.parse.unquote(name): name for name in os.listdir(self.folder / bucket)}
        return {
            name.removeprefix(prefix): self.folder / bucket / quoted
            for name, quoted in names.items()
            if name.startswith(prefix)
        }

    def requests(self):
        """Return all requests so far, each as method and path."""
        return (self.folder.parent / "requests").read_text().splitlines()


@contextlib.contextmanager
def bucket_site() -> Iterator[BucketSite]:
    """Serve the buckets `bucket` and `private` to two machines for as long as the block lasts."""
    from machines import machines

    with (
        tempfile.TemporaryDirectory(prefix="tfdist-gcs-") as name,
        machines(Path(name), 2) as made,
        served_buckets(made) as site,
    ):
        yield site


@contextlib.contextmanager
def served_buckets(machines: "Machines") -> Iterator[BucketSite]:
    """Serve the buckets on the controller of machines that may do something else too."""
    from machines import CONTROLLER

    place = Path(tempfile.mkdtemp(prefix="gcs", dir=machines.folder))
    folder = place / "buckets"
    for bucket in ("bucket", PRIVATE):
        (folder / bucket).mkdir(parents=True)
    _certify(place)
    line = f"10.77.0.254 {' '.join(NAMES)}\n"
    if line not in machines.hosts.read_text():
        with machines.hosts.open("a") as hosts:
            hosts.write(line)
    with open(place / "server.log", "w") as log:
        server = machines.start(CONTROLLER, [sys.executable, __file__, place], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS_TO_START
        while not (place / "requests").exists():
            assert server.poll() is None, (place / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield BucketSite(folder, machines, place / "authority.pem")
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _certify(place: Path) -> None:
    """Write an authority, and a certificate of the server's names that it has signed."""

    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=place)

    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(*new, "-keyout", "authority.key", "-out", "authority.pem", "-subj", "/CN=tests")
    names = ",".join(f"DNS:{name}" for name in NAMES)
    signed = ("-CA", "authority.pem", "-CAkey", "authority.key", "-addext", f"subjectAltName={names}")
    openssl(
        *new,
        *signed,
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-keyout",
        "server.key",
        "-out",
        "server.pem",
        "-subj",
        "/CN=buckets",
    )


class _Handler(BaseHTTPRequestHandler):
    """Answer the requests that TensorFlow's client makes."""

    protocol_version = "HTTP/1.1"
    place: Path
    sessions: dict[str, Path] = {}  # noqa: RUF012  # of all uploads, by their number

    def log_message(self, format, *arguments):
        """Leave out the server's own log, which is of answers."""

    def _note(self):
        with (self.place / "requests").open("a") as log:
            log.write(f"{self.command} {urllib.parse.unquote(self.path)}\n")

    def do_GET(self):
        path, query = self._split()
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)", path):
            self._bucket(match[1]) and self._send(200, {"name": match[1], "location": "US"})
        elif match := re.fullmatch(r"/storage/v1/b/([^/]+)/o", path):
            self._bucket(match[1]) and self._send(200, self._listed(match[1], query))
        elif match := re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)", path):
            if (file := self._object(match[1], match[2])) is not None:
                self._send(200, self._described(file, match[2]))
        elif match := re.fullmatch(r"/([^/]+)/(.+)", path):
            if (file := self._object(match[1], match[2])) is not None:
                self._send_range(file.read_bytes())
        else:
            self._send(400)

    def do_POST(self):
        path, query = self._split()
        body = self._body()
        if match := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            if not self._bucket(match[1]):
                return
            file = self.place / "buckets" / match[1] / urllib.parse.quote(query["name"], safe="")
            hold = self.place / "hold"
            while hold.exists() and query["name"].endswith(hold.read_text()):
                time.sleep(0.1)
            if query["uploadType"] == "media":
                self._write(file, body)
                self._send(200, {})
                return
            number = str(next(_NUMBERS))
            self.sessions[number] = file
            self._send(200, {}, {"Location": f"https://{NAMES[1]}/session/{number}"})
        elif match := re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)/rewriteTo/b/([^/]+)/o/(.+)", path):
            if (file := self._object(match[1], match[2])) is not None:
                self._write(
                    self.place / "buckets" / match[3] / urllib.parse.quote(match[4], safe=""),
                    file.read_bytes(),
                )
                self._send(200, {"done": True})
        else:
            self._send(400)

    def do_PUT(self):
        path, _ = self._split()
        body = self._body()
        self._write(self.sessions.pop(path.rpartition("/")[2]), body)
        self._send(200, {})

    def do_DELETE(self):
        path, _ = self._split()
        match = re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)", path)
        if match and (file := self._object(match[1], match[2])) is not None:
            file.unlink()
            self._send(204)

    def _split(self):
        """Return the path, of which each part is still one part, and the query."""
        self._note()
        parts = urllib.parse.urlsplit(self.path)
        pieces = [urllib.parse.unquote(piece) for piece in parts.path.split("/")]
        return "/".join(pieces), dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))

    def _bucket(self, bucket):
        """Return whether a bucket may be used, or answer that it may not."""
        if bucket == PRIVATE:
            self._send(403, {"error": {"message": "Anonymous caller does not have access"}})
            return False
        if not (self.place / "buckets" / bucket).is_dir():
            self._send(404)
            return False
        return True

    def _object(self, bucket, name):
        if not self._bucket(bucket):
            return None
        file = self.place / "buckets" / bucket / urllib.parse.quote(name, safe="")
        if not file.exists():
            self._send(404)
            return None
        return file

    def _described(self, file, name):
        status = file.stat()
        updated = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(status.st_mtime))
        return {
            "name": name,
            "size": str(status.st_size),
            "generation": str(status.st_mtime_ns),
            "updated": f"{updated}.{status.st_mtime_ns // 10**6 % 1000:03d}Z",
        }

    def _listed(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names = sorted(map(urllib.parse.unquote, os.listdir(self.place / "buckets" / bucket)))
        items, prefixes = [], []
        for name in names:
            if not name.startswith(prefix):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            if found:
                prefixes.append(f"{prefix}{head}{delimiter}")
            else:
                items.append({"name": name})
        return {"items": items[: int(query.get("maxResults", 1000))], "prefixes": sorted(set(prefixes))}

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _write(self, file, body):
        partial = self.place / f"partial-{next(_NUMBERS)}"
        partial.write_bytes(body)
        partial.replace(file)

    def _send_range(self, content):
        match = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range") or "bytes=0-")
        start, end = int(match[1]), int(match[2] or len(content) - 1) + 1
        if start >= len(content):
            self._send(416)
        else:
            self._send(206, content[start:end])

    def _send(self, status, body=b"", headers=()):
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _serve(place: Path) -> None:
    _Handler.place = place
    server = ThreadingHTTPServer(("", 443), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "server.pem", place / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    (place / "requests").touch()
    server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
