"""The engine that the tests start: containers of its image are machines with tfdist, which resolve each other's names."""

import pytest

pytestmark = pytest.mark.engines
ASK = """
import time, urllib.error, urllib.request
import tfdist

while True:
    try:
        text = urllib.request.urlopen("http://server:8000/passwd").read().decode()
        break
    except urllib.error.URLError:  # it does not listen yet
        time.sleep(0.1)
print(tfdist.ClusterConfig(), text)
"""


@pytest.mark.again
def test_containers_reach_each_other_by_name_and_have_tfdist(docker):
    mounts = [f"--volume={volume}" for volume in docker.volumes]
    docker.run("docker", "network", "create", "--internal", "between")
    options = [*mounts, "--network=between", "--init"]
    server = ["python", "-m", "http.server", "8000", "--directory", "/etc"]
    docker.run("docker", "run", "--detach", "--name=server", *options, docker.image, *server)
    answer = docker.run("docker", "run", "--rm", "--user=1000", *options, docker.image, "python", "-c", ASK)
    assert "ClusterConfig(" in answer
    assert "root:" in answer
    docker.kill("server")
    docker.run("docker", "wait", "server")
    assert docker.inspect("server")["State"]["ExitCode"] == 137
    docker.run("docker", "rm", "server")
    docker.run("docker", "network", "rm", "between")
