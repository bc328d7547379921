"""Tasks reach each other directly where a proxy is set, whoever has started them."""

import contextlib
import os

import pytest

from tfdist.cluster.config import ClusterConfig
from tfdist.strategies import server, wait_then_connect


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_grpc_proxy", "example.org,node1")
    return ClusterConfig(chief=["node1:2222"], worker=["node2:2222"], ps=["[fd00::3]:2222"])


NO_PROXY, DIRECT = "no_grpc_proxy", "example.org,node1,127.0.0.1,localhost,::1,node2,fd00::3"


def test_who_connects_reaches_the_others_directly(cluster, monkeypatch):
    monkeypatch.setattr(wait_then_connect, "_await_all", lambda *_: None)
    with wait_then_connect.connecting("x", cluster.with_task("chief", 0), {}, timeout=1.0):
        assert os.environ[NO_PROXY] == DIRECT


def test_who_serves_reaches_the_others_directly(cluster, monkeypatch):
    class Served(Exception):
        """Ends the call before it makes a server."""

    @contextlib.contextmanager
    def starts(*_):
        raise Served
        yield

    monkeypatch.setattr(server, "_tcp_transport", starts)
    with pytest.raises(Served):
        server.serve(cluster.with_task("worker", 0), device="cpu")
    assert os.environ[NO_PROXY] == DIRECT
