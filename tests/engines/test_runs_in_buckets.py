"""Submit a config whose runs are in a bucket: to ssh, Slurm, Ray and this machine, with a server of these tests."""

import contextlib
import json
import os
import signal

import pytest
from gcs_site import served_buckets, why_no_buckets
from submitted import state, wait_for

import proc
from commands import tfdist_in

pytestmark = [pytest.mark.engines, pytest.mark.again]
SECONDS = 400
CHECKPOINTS = "checkpoint: {every: 10, keep: 9}\nlaunch: {threads: 1}\n"


class Site:
    """An engine whose tasks find the bucket, and a user who submits to it.

    Attributes:
        bucket: The bucket.
        folder: The folder in which the user types commands.
        run: Runs a command where the user logs in.
        variables: What the tasks need to find the bucket and prepared data.
    """

    def __init__(self, bucket, folder, run, cache):
        self.bucket, self.folder, self.run = bucket, folder, run
        self.variables = {**bucket.variables(), "TFDIST_CACHE_DIR": cache, "TF_CPP_MIN_LOG_LEVEL": "2"}

    def tfdist(self, *words, **variables):
        done = self.run(
            tfdist_in(self.folder, *words), {"XDG_STATE_HOME": f"{self.folder}/state", **variables}
        )
        return getattr(done, "stdout", done)

    def submit(self, engine, text, *words, **variables):
        (self.folder / "train.yaml").write_text(text)
        flags = ["--config", "train.yaml", "--run_dir", "gs://bucket/runs/"]
        return self.tfdist("submit", engine, *flags, *words, **variables).strip()

    def check(self, handle, starts, steps=30):
        """Check that a run has ended well, and is in the bucket alone."""
        followed = self.tfdist("logs", handle, "--follow")
        assert state(self.tfdist, handle) == "succeeded", followed[-3000:]
        [place] = {name.split("/")[0] for name in self.bucket.objects("runs/")}
        stored = self.bucket.objects(f"runs/{place}/")
        report = json.loads(stored["report.json"].read_text())
        assert (report["steps"], report["starts"]) == (steps, starts)
        assert {f"export/{steps}/saved_model.pb", f"checkpoints/{steps}/about.json"} <= stored.keys()
        assert f"  gs://bucket/runs/{place}" in self.tfdist("status", handle)
        for task in ("chief:0", "ps:0", "worker:1"):
            assert f"{task}: " in followed
        local = self.folder / "runs" / place
        assert not (local / "report.json").exists()
        assert not (local / "checkpoints").exists()
        return followed, local


@pytest.fixture
def bucket_of():
    """Return a function that serves a bucket to the machines of a site."""
    if reason := why_no_buckets():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        yield lambda site: stack.enter_context(served_buckets(site.machines))


def test_ssh_continues_from_the_bucket_after_the_chief_was_killed(bucket_of, ssh, tmp_path, cache, config):
    bucket = bucket_of(ssh)

    def run(words, variables):
        done = ssh.run(*words, timeout=SECONDS, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    site = Site(bucket, tmp_path, run, cache)
    options = dict(ssh.options)
    exports = " ".join(f"{name}={value}" for name, value in site.variables.items())
    section = {
        "hosts": list(ssh.machines.nodes),
        "python": options.pop("python"),
        "setup": [f"{options.pop('setup')} {exports} TEST_MARK={tmp_path}"],
        "options": options,
    }
    text = config.replace("steps: 10", "steps: 30").replace("launch: {threads: 1}\n", CHECKPOINTS)
    bucket.hold("20/about.json")
    handle = site.submit("ssh", f"{text}engine: {{ssh: {json.dumps(section)}}}\n")
    wait_for(
        lambda: any("/upload/" in line and line.endswith("20/about.json") for line in bucket.requests()),
        lambda: site.tfdist("status", handle) + site.tfdist("logs", handle),
        seconds=SECONDS,
    )
    for process in proc.with_variable("TEST_MARK", str(tmp_path)):
        if process.task == "chief:0":
            os.kill(process.pid, signal.SIGKILL)
    bucket.release()
    followed, local = site.check(handle, starts=2)
    assert "resuming at step 10 of 30, from gs://bucket/runs/" in followed
    assert {"exit_status", "job.sh", "ssh.json"} <= set(os.listdir(local))


def test_slurm_trains_into_the_bucket(bucket_of, slurm, tmp_path, cache, config):
    site = Site(
        bucket_of(slurm),
        tmp_path,
        lambda words, variables: slurm.run(*words, timeout=SECONDS, **variables),
        cache,
    )
    text = config.replace("steps: 10", "steps: 30").replace("launch: {threads: 1}\n", CHECKPOINTS)
    handle = site.submit("slurm", text, "--sbatch=nodes=3", **site.variables)
    _, local = site.check(handle, starts=1)
    assert (local / "exit_status").read_text() == "0\n"
    assert (local / "logs" / "saved_step").read_text() == "30\n"  # which renews the restarts
    assert "  step 30 of 30 (100 %)" in site.tfdist("status", handle)


def test_this_machine_trains_into_the_bucket_and_shows_the_logs_of_the_copy(
    bucket_of, ssh, tmp_path, cache, config
):
    bucket = bucket_of(ssh)

    def run(words, variables):
        done = ssh.machines.run("node1", words, timeout=SECONDS, env={**ssh.environ, **variables})
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    site = Site(bucket, tmp_path, run, cache)
    text = config.replace("steps: 10", "steps: 30").replace("launch: {threads: 1}\n", CHECKPOINTS)
    handle = site.submit("local", text, **site.variables)
    _, local = site.check(handle, starts=1)
    assert (local / "copy" / "logs" / "ps-0.log").exists()
    assert "  step 30 of 30 (100 %)" in site.tfdist("status", handle)


def test_ray_trains_into_the_bucket_and_reads_its_report_there(bucket_of, ray, tmp_path, cache, config):
    site = Site(
        bucket_of(ray),
        tmp_path,
        lambda words, variables: ray.run(*words, timeout=SECONDS, **variables),
        cache,
    )
    text = config.replace("steps: 10", "steps: 30").replace("launch: {threads: 1}\n", CHECKPOINTS)
    section = {"runtime_env": {"env_vars": site.variables}}
    handle = site.submit("ray", f"{text}engine: {{ray: {json.dumps(section)}}}\n")
    site.check(handle, starts=1)
