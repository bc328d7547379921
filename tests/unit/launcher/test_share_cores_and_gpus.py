"""How the cores of a machine are shared out, on paper and in the tasks."""

import json
import os
import sys

import pytest
from launched import nothing_left, run  # noqa: F401  # a fixture

from tfdist.cluster.config import ClusterConfig
from tfdist.launcher.share_cores_and_gpus import own_gpus, share_cores

SHOW = """
import json, os
names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
print(json.dumps([sorted(os.sched_getaffinity(0)), *(os.environ[name] for name in names)]))
"""


@pytest.mark.parametrize(
    ("cluster", "cores", "threads"),
    [
        ({"workers": 2, "ps": 1}, 8, 4),  # the ps and the chief work while the workers wait
        ({"workers": 2, "chief": 1}, 9, 3),  # a chief without ps trains too
        ({"workers": 2, "evaluator": 1}, 8, 4),
        ({"workers": 3}, 8, 2),
        ({"workers": 4, "ps": 2}, 2, 1),
        ({"workers": 1}, 1, 1),
        ({"workers": 0, "jobs": {"reader": 1, "trainer": 3}}, 8, 2),  # the chief only asks
    ],
)
def test_those_that_compute_share_the_cores(cluster, cores, threads):
    shares = share_cores(ClusterConfig.local(**cluster), cores=range(cores))
    assert {share.threads for share in shares.values()} == {threads}
    assert all(int(share.environment()["TF_NUM_INTEROP_THREADS"]) >= 8 for share in shares.values())
    assert not any(share.pinned for share in shares.values())


def test_only_the_tasks_of_a_machine_share_its_cores_and_gpus():
    cluster = ClusterConfig.local(workers=3, ps=1)
    chief, *workers, ps = cluster.tasks()
    shares = share_cores(cluster, here=[chief, workers[2], ps], cores=range(8), gpus=["0", "1"])
    assert list(shares) == [chief, workers[2], ps]
    assert {share.threads for share in shares.values()} == {8}
    assert [share.gpus for share in shares.values()] == [(), ("0", "1"), ()]
    assert share_cores(cluster, here=[ps], cores=range(8))[ps].threads == 8


def test_pinned_tasks_have_cores_of_their_own():
    cluster = ClusterConfig.local(workers=3, ps=1)
    shares = share_cores(cluster, cores=[0, 2, 4, 6, 8, 10, 12], pin=True)
    assert [shares[task].pinned for task in cluster.tasks()] == [(), (0, 2), (4, 6), (8, 10), ()]


def test_more_pinned_tasks_than_cores_take_turns():
    shares = share_cores(ClusterConfig.local(workers=5), cores=[3, 5], pin=True)
    assert [share.pinned for share in shares.values()] == [(3,), (5,), (3,), (5,), (3,)]


@pytest.mark.parametrize(
    ("cluster", "gpus", "expected"),
    [
        (
            {"workers": 2, "ps": 1},
            "0123",
            ["-1", "0,1", "2,3", "-1"],
        ),  # neither the chief nor the ps computes
        ({"workers": 3}, "0123", ["0", "1", "2"]),
        ({"workers": 2, "chief": 1}, "7", ["7", "7", "7"]),
    ],
)
def test_those_that_compute_share_the_gpus(cluster, gpus, expected):
    shares = share_cores(ClusterConfig.local(**cluster), cores=range(4), gpus=gpus)
    assert [share.visible()["CUDA_VISIBLE_DEVICES"] for share in shares.values()] == expected


def test_cuda_is_left_alone_where_no_gpu_is():
    shares = share_cores(ClusterConfig.local(workers=2), cores=range(2), gpus=[])
    assert not any(share.visible() for share in shares.values())


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("2, GPU-5ebe9f43", ["2", "GPU-5ebe9f43"]), ("0,-1,1", ["0"]), ("-1", []), ("", [])],
)
def test_only_the_gpus_that_cuda_would_see_are_shared(monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert own_gpus() == gpus


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins")
class TestInTheTasks:
    def tasks(self, tmp_path, **options):
        _, shown = run(SHOW, tmp_path, **options)
        return [json.loads((tmp_path / f"logs/worker-{i}.log").read_text()) for i in range(2)], shown

    def test_the_share_is_told(self, tmp_path, monkeypatch):
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        own = sorted(os.sched_getaffinity(0))
        part = str(max(1, len(own) // 2))
        tasks, shown = self.tasks(tmp_path)
        assert tasks == [[own, part, str(max(8, int(part))), part]] * 2
        assert f"2 tasks on {len(own)} core" in shown

    def test_the_users_variables_win_over_the_share(self, tmp_path, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        tasks, _ = self.tasks(tmp_path)
        assert [task[3] for task in tasks] == ["7", "7"]

    def test_each_sees_its_part_of_the_gpus(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
        show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ.get('TF_FORCE_GPU_ALLOW_GROWTH'))"
        _, shown = run(show, tmp_path)
        assert [(tmp_path / f"logs/worker-{i}.log").read_text() for i in range(2)] == ["4 None\n", "5 None\n"]
        assert "worker:1 on GPU 5" in shown

    def test_two_that_share_a_gpu_leave_each_other_memory(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
        names = ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH", "TFDIST_SHARES_GPU")
        run(f"import os; print(*[os.environ[name] for name in {names}])", tmp_path)
        assert {(tmp_path / f"logs/worker-{i}.log").read_text() for i in range(2)} == {"4 true 1\n"}

    def test_an_explicit_number_wins_over_the_users_variables(self, tmp_path, monkeypatch):
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        tasks, _ = self.tasks(tmp_path, threads=3, env={"TF_NUM_INTEROP_THREADS": "5"})
        assert [task[1:] for task in tasks] == [["3", "5", "3"]] * 2

    @pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
    def test_pinned_tasks_run_on_different_cores(self, tmp_path):
        (first, second), shown = self.tasks(tmp_path, pin=True)
        assert first[0]
        assert second[0]
        assert not set(first[0]) & set(second[0])
        assert f"worker:1 on core {second[0][0]}" in shown
