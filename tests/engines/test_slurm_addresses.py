"""Every task of a Slurm step takes the address of the node that it runs on, however Slurm distributes the tasks."""

import json
import sys

import pytest

pytestmark = pytest.mark.engines

WHERE = """
import json, os
from tfdist import ClusterConfig
cluster = ClusterConfig.from_environment(port=20_000)
print(json.dumps([os.environ["SLURM_PROCID"], os.environ["SLURMD_NODENAME"], *map(list, [cluster.worker, cluster.task])]))
"""
SHAPES = {
    "block": ["-N3", "-n5", "--distribution=block"],
    "cyclic": ["-N3", "-n5", "--distribution=cyclic"],
    "cyclic, uneven": ["-N2", "-n5", "--distribution=cyclic:block"],
    "tasks per node": ["-N3", "--ntasks-per-node=2"],
    "overcommit": ["-N1", "-n7", "--overcommit"],
    "components in order": ["-N1", "-n3", "-w", "node1", ":", "-N2", "-n3", "-w", "node2,node3"],
    "components": ["-N1", "-n3", "-w", "node3", ":", "-N2", "-n3", "-w", "node1,node2"],
    "components, cyclic": [
        *["-N1", "-n3", "-w", "node2", "--distribution=cyclic", ":"],
        *["-N2", "-n4", "-w", "node1,node3", "--distribution=cyclic"],
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tasks_address_is_that_of_its_node(slurm, shape):
    command = [sys.executable, "-c", WHERE]
    options = [word for option in SHAPES[shape] for word in ([*command, ":"] if option == ":" else [option])]
    tasks = _told(slurm.run("srun", *options, *command))
    assert len(tasks) >= 5
    _compare(tasks)


def test_one_step_over_the_components_of_a_job_makes_one_cluster(slurm, tmp_path):
    job, output = tmp_path / "job.sh", tmp_path / "output"
    (tmp_path / "where.py").write_text(WHERE)
    job.write_text(
        "#!/bin/bash\n"
        "#SBATCH -n2 --nodelist=node3\n"
        "#SBATCH hetjob\n"
        "#SBATCH -n3 -N2 --nodelist=node1,node2\n"
        f"srun --het-group=0,1 {sys.executable} {tmp_path}/where.py\n"
    )
    slurm.run("sbatch", "--wait", "-o", output, job)
    tasks = _told(output.read_text())
    assert len(tasks) == 5
    _compare(tasks)


def _told(output):
    return [json.loads(line) for line in output.splitlines()]


def _compare(tasks):
    assert sorted(int(rank) for rank, *_ in tasks) == list(range(len(tasks)))
    clusters = {tuple(workers) for _, _, workers, _ in tasks}
    assert len(clusters) == 1, clusters
    (workers,) = clusters
    assert len(set(workers)) == len(tasks)
    for rank, node, _, (role, index) in tasks:
        assert (role, index) == ("worker", int(rank))
        assert workers[index].partition(":")[0] == node
