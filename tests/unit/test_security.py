"""What comes from a stranger (a config, data, a checkpoint, a model of Keras) runs nothing."""

import ast
from pathlib import Path

import numpy as np
import pytest

from tfdist.errors import ConfigError, DataError
from tfdist.export.export_folder import find_export, write_metadata
from tfdist.trainer.config import read_config

tf = pytest.importorskip("tensorflow")

from tfdist.datasets.open_data import open_data  # noqa: E402
from tfdist.export.load_export import load  # noqa: E402
from tfdist.training.checkpoints.checkpoint_files import open_checkpoint  # noqa: E402  # after the check that TensorFlow is there

PACKAGE = Path(__file__).parents[2] / "src" / "tfdist"
SOURCES = sorted(PACKAGE.glob("**/*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# They unpickle what the notebook or the driver of Ray and its own tasks have written: in a folder that nobody else
# may open, or sent by Ray, which pickles all that it sends.
MAY_PICKLE = {"launcher/notebook.py", "engines/ray/launch.py"}
FORBIDDEN_CALLS = {"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_source_unpickles_evaluates_or_asks_a_shell(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
            may_pickle = path.relative_to(PACKAGE).as_posix() in MAY_PICKLE
            assert may_pickle or not FORBIDDEN_MODULES & {name.partition(".")[0] for name in names}
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in FORBIDDEN_CALLS
            said = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert said.get("shell", "False") == "False"
            assert said.get("allow_pickle", "False") == "False"
            assert said.get("safe_mode", "True") == "True"


class Harmful:
    """Leave a mark where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:open", "!!python/name:os.system", "!!python/module:os"]
)
def test_a_config_makes_no_objects(tmp_path, tag):
    path = tmp_path / "x.yaml"
    path.write_text(f"train: {tag} ['{tmp_path}/mark', 'w']\n")
    with pytest.raises(ConfigError, match="the tag"):
        read_config(path)
    assert not (tmp_path / "mark").exists()


def test_data_are_not_unpickled(tmp_path):
    images = np.array([Harmful(tmp_path / "mark")], object)
    np.savez(tmp_path / "own.npz", x_train=images, y_train=[0], x_test=images, y_test=[0])
    with pytest.raises(DataError, match="cannot be read"):
        open_data(str(tmp_path / "own.npz"), cache_dir=tmp_path / "cache")
    assert not (tmp_path / "mark").exists()


def test_a_checkpoint_reaches_no_file_outside_of_it(tmp_path):
    (tmp_path / "secret").write_text("")
    folder = tmp_path / "7"
    folder.mkdir()
    of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    (folder / "about.json").write_text(
        f'{{"format": 1, "step": 7, "facts": {{}}, "variables": [], "sha256": {{"../secret": "{of_nothing}"}}}}'
    )
    assert open_checkpoint(folder) == "secret is missing"


@pytest.mark.parametrize("form", [{}, {"save_format": "h5"}, {"save_format": "keras"}], ids=str)
def test_a_keras_model_with_code_in_it_is_refused(tmp_path, form):
    """Keras keeps the code of a Lambda in the file, marshalled."""
    if form and not tf.keras.__version__.startswith("2."):
        pytest.skip("only Keras 2 writes several formats")
    path, mark = tmp_path / "model.keras", tmp_path / "mark"
    layer = tf.keras.layers.Lambda(
        lambda x, mark=str(mark): (__import__("pathlib").Path(mark).touch(), x)[1], output_shape=(4, 4, 1)
    )
    tf.keras.Sequential([tf.keras.Input((4, 4, 1)), layer]).save(path, **form)
    mark.unlink(missing_ok=True)
    write_metadata(tmp_path, image_shape=(4, 4, 1), about={"classes": ["a"]})
    with pytest.raises(ConfigError, match=r"cannot be loaded: (it has a Lambda layer|File is not a zip)"):
        load(find_export(path))
    assert not mark.exists()
