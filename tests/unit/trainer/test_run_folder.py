"""The folders of a run: --run_dir, those of Vertex AI and SageMaker, and the default."""

from pathlib import Path

import pytest

from tfdist._utils import check_and_expand_paths
from tfdist.errors import ConfigError
from tfdist.trainer.failure_for_sagemaker import failure_file, failure_written
from tfdist.trainer.run_folder import RunFolder, find_run_folder

VERTEX = {
    "AIP_MODEL_DIR": "gs://bucket/jobs/7/model/",
    "AIP_CHECKPOINT_DIR": "gs://bucket/jobs/7/checkpoints/",
    "AIP_TENSORBOARD_LOG_DIR": "gs://bucket/jobs/7/logs/",
}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """Return the folder at which gs://bucket is mounted."""
    monkeypatch.setattr(check_and_expand_paths, "_BUCKETS", tmp_path)
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


def test_without_variables_all_is_in_one_folder():
    assert find_run_folder(None, Path("runs/x"), {}) == RunFolder.at(Path("runs/x").absolute())
    assert find_run_folder("/a", Path("runs/x"), {}).is_one_folder


def test_on_vertex_ai_each_variable_is_a_folder(bucket):
    folder = find_run_folder(None, Path("runs/x"), VERTEX)
    job = bucket / "jobs" / "7"
    assert folder == RunFolder(job, job / "checkpoints", job / "logs", job / "model", has_one_export=True)
    assert not folder.is_one_folder


def test_a_variable_of_vertex_ai_alone_changes_its_folder_alone(bucket):
    name = "AIP_TENSORBOARD_LOG_DIR"
    folder = find_run_folder(None, Path("runs/x"), {name: VERTEX[name]})
    assert folder.summaries == bucket / "jobs" / "7" / "logs"
    assert folder.export == Path("runs/x/export").absolute()
    assert not folder.has_one_export


def test_on_sagemaker_the_folders_are_beside_the_model():
    folder = find_run_folder(None, Path("runs/x"), {"SM_MODEL_DIR": "/opt/ml/model"})
    data = Path("/opt/ml/output/data")
    assert folder == RunFolder(data, Path("/opt/ml/checkpoints"), data / "summaries", Path("/opt/ml/model"))
    environ = {"SM_MODEL_DIR": "/opt/ml/model", "SM_OUTPUT_DATA_DIR": "/elsewhere"}
    assert find_run_folder(None, Path("runs/x"), environ).root == Path("/elsewhere")


@pytest.mark.parametrize("environ", [VERTEX, {"SM_MODEL_DIR": "/opt/ml/model"}])
def test_run_dir_comes_before_the_variables(environ):
    assert find_run_folder("/a", Path("runs/x"), environ) == RunFolder.at(Path("/a"))


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """Return the folder of the copies of addresses."""
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runs"


def test_run_dir_may_be_an_address_of_a_mounted_bucket(bucket):
    assert find_run_folder("gs://bucket/a", Path("x"), {}) == RunFolder.at(bucket / "a")


@pytest.mark.parametrize("address", ["gs://../a", "gs:///a", "s3://"])
def test_an_address_needs_a_bucket(bucket, address):
    with pytest.raises(ConfigError, match="--run_dir: expected an address such as gs://bucket/folder"):
        find_run_folder(address, Path("x"), {})


def test_an_address_has_a_copy_of_its_own(copies):
    folder = find_run_folder("s3://bucket/runs/a/", Path("x"), {})
    assert folder.root.parent == copies
    assert folder.root.name.startswith("a-")
    assert folder.place == "s3://bucket/runs/a"
    assert folder.is_one_folder
    assert folder.shown(folder.export_of(7)) == "s3://bucket/runs/a/export/7"
    assert folder == find_run_folder("s3://bucket/runs/a", Path("y"), {})
    assert folder.root != find_run_folder("s3://bucket/other/a", Path("x"), {}).root


def test_a_second_reader_has_other_copies_of_the_same_addresses(copies):
    folder = find_run_folder("s3://bucket/a", Path("x"), {})
    other = folder.with_copy_for("evaluator")
    assert other.root == folder.root.with_name(f"{folder.root.name}-evaluator")
    assert other.shown(other.checkpoints) == folder.shown(folder.checkpoints)
    assert other.summaries == other.root / "summaries"
    local = RunFolder.at(Path("/a"))
    assert local.with_copy_for("evaluator") == local


def test_vertex_ai_variables_may_be_addresses_that_are_not_mounted(copies):
    folder = find_run_folder(None, Path("runs/x"), VERTEX)
    assert folder.place == "gs://bucket/jobs/7"
    assert folder.shown(folder.export_of(7)) == "gs://bucket/jobs/7/model"
    assert folder.shown(folder.checkpoints) == "gs://bucket/jobs/7/checkpoints"
    assert folder.shown(folder.summaries) == "gs://bucket/jobs/7/logs"
    assert len({folder.root, folder.export, folder.checkpoints, folder.summaries}) == 4
    assert not folder.is_one_folder
    with pytest.raises(ConfigError, match=r"AIP_MODEL_DIR: expected a folder in a bucket"):
        find_run_folder(None, Path("runs/x"), {"AIP_MODEL_DIR": "gs://bucket"})


def test_sagemaker_reads_the_error_of_a_run_that_fails(tmp_path):
    environ = {"SM_MODEL_DIR": str(tmp_path / "model")}
    path = failure_file(environ)
    assert path == tmp_path / "output" / "failure"
    with pytest.raises(ConfigError), failure_written(environ):
        raise ConfigError("here", "is wrong")
    assert path.read_text() == "here: is wrong"
    with pytest.raises(KeyError), failure_written(environ):
        raise KeyError("k" * 5000)
    assert path.read_text().startswith("KeyError: 'kkk")
    assert len(path.read_text()) == 1024
    with failure_written(environ):
        assert not path.exists()
    assert failure_file({}) is None
