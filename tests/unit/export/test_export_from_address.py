"""Find an exported model in an object store, which is TensorFlow's file system in memory."""

import json

import pytest

from tfdist._utils.object_store import write_file
from tfdist.errors import ConfigError
from tfdist.export.download_export import fetch_export
from tfdist.export.export_folder import find_export


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return the address of a run with two exports."""
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    address = f"ram://bucket{tmp_path}/run"
    for step in (10, 20):
        metadata = {"image_shape": [8, 8, 1], "classes": ["a", "b"], "step": step}
        write_file(f"{address}/export/{step}/metadata.json", json.dumps(metadata).encode())
        write_file(f"{address}/export/{step}/saved_model.pb", b"model")
        write_file(f"{address}/export/{step}/model.keras", b"model")
    write_file(f"{address}/export/latest", b"20\n")
    return address


@pytest.mark.parametrize(
    ("name", "step", "form"),
    [
        ("", 20, "saved_model"),
        ("/export", 20, "saved_model"),
        ("/export/10", 10, "saved_model"),
        ("/export/10/model.keras", 10, "keras"),
    ],
)
def test_a_model_is_copied_with_its_metadata(run, name, step, form):
    exported = find_export(fetch_export(f"{run}{name}"))
    assert (exported.about["step"], exported.format) == (step, form)


def test_an_address_without_a_model_is_one_line(run):
    with pytest.raises(ConfigError, match=r"/elsewhere: has no exported model. A completed run has one in"):
        fetch_export(f"{run}/elsewhere")
