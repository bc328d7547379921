"""Check the public names, and that importing tfdist loads neither TensorFlow nor other large packages."""

import subprocess
import sys
from pathlib import Path

import tfdist

PUBLIC = [
    "CheckpointAndResume",
    "ClusterConfig",
    "LazyAdam",
    "Task",
    "Traffic",
    "barrier",
    "connect",
    "evaluate",
    "fit",
    "is_chief",
    "make_strategy",
    "notebook_launcher",
    "predict",
    "save",
    "serve",
    "start",
]
LIGHT = [
    "tfdist",
    "tfdist.ray",
    "tfdist.trainer.config",
    "tfdist.cluster.config",
    "tfdist.export.export_folder",
    "tfdist.cli.plan",
    "tfdist.cli.predict",
    "tfdist.cli.schema",
    "tfdist.cli._flags_from_signature",
    "tfdist.__main__",
]


def test_the_public_names_are_these():
    assert sorted(tfdist.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(tfdist))
    for name in PUBLIC:
        assert getattr(tfdist, name).__doc__


def test_the_public_modules_besides_are_these():
    assert tfdist.ray.__all__ == ["launch"]  # not in tfdist.__all__: a star import must not hide Ray itself
    assert tfdist.ray.launch.__doc__


def test_importing_it_loads_no_tensorflow():
    code = f"""
import sys
for name in {LIGHT}:
    __import__(name)
heavy = {{"tensorflow", "keras", "numpy", "tensorflow_datasets", "rich", "ray"}} & {{name.split(".")[0] for name in sys.modules}}
sys.exit(f"loaded: {{heavy}}" if heavy else 0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_the_modules_can_be_imported_together():
    # Two that define the same absl flag at import could not.
    code = "import tfdist.cli.plan, tfdist.cli.schema; from absl import flags; assert 'config' not in flags.FLAGS"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr


def test_no_two_test_files_have_one_name() -> None:
    # pytest imports them by name alone, and stops where it collects both.
    names = [
        path.name
        for path in Path(__file__).parents[1].rglob("*.py")
        if path.name not in ("conftest.py", "__init__.py")
    ]
    assert sorted(names) == sorted(set(names))
