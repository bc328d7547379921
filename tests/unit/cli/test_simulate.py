"""The verb: from a file to tables, a plot and advice."""

import importlib.util
from pathlib import Path

import pytest

from commands import tfdist
from tfdist._utils.plotting import file_to_draw
from tfdist.errors import TfdistError

CONFIG = Path(__file__).parents[3] / "examples" / "simulate" / "inception.yaml"


def simulate(*flags):
    return tfdist("simulate", *flags)


def test_each_strategy_has_a_table_and_advice_is_given(tmp_path):
    plot = tmp_path / "new" / "scaling.png"
    flags = [f"--plot={plot.with_suffix('')}"] if importlib.util.find_spec("matplotlib") else []
    run = simulate("--config", CONFIG, "--workers=1,20", "--advise", *flags)
    assert run.returncode == 0, run.stderr
    tables = run.stdout.split("\n\n")
    names = [table.splitlines()[0] for table in tables[:3]]
    assert names == ["parameter_server", "parameter_server_sync, as the file says", "multi_worker_mirrored"]
    for table in tables[:3]:
        rows = [line.split() for line in table.splitlines()[2:]]
        assert [row[0] for row in rows] == ["1", "20"]
        assert 0.98 <= float(rows[0][2]) <= 1.02
    assert "With 20 workers of parameter_server_sync, by itself each would bring:" in run.stdout
    assert "an 8-bit exchange (int8)" in run.stdout
    if flags:
        assert f"drawn in {plot}" in run.stdout
        assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "tfdist: --config: is missing. Name a file"),
        (["--config=nowhere.yaml"], "nowhere.yaml"),
        (
            [f"--config={CONFIG}", "--workers=0..3"],
            "tfdist: --workers: expected 1..4 or 1,2,4, of at most 1000 workers",
        ),
        ([f"--config={CONFIG}", "--check=all"], "command line"),
        (["--check", "--workers=2"], "--workers: has no effect with --check alone"),
        (["--example", "--advise"], "--advise: has no effect with --example alone"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(flags, message):
    run = simulate(*flags)
    assert run.returncode == 2
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_the_example_that_is_printed_can_be_simulated(tmp_path):
    run = simulate("--example")
    assert (run.returncode, run.stdout) == (0, CONFIG.read_text())


def test_a_key_that_is_unknown_is_named_with_its_line(tmp_path):
    config = tmp_path / "wrong.yaml"
    config.write_text(CONFIG.read_text().replace("latency:", "latencies:"))
    run = simulate("--config", config)
    assert run.returncode == 2
    assert "network.latencies: unknown key. Did you mean 'latency'?" in run.stderr


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed")
def test_a_plot_has_a_form_that_matplotlib_draws():
    run = simulate("--config", CONFIG, "--workers=1", "--plot=x.txt")
    assert run.returncode == 2
    assert run.stdout == ""
    assert "--plot: expected a name in " in run.stderr


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed")
def test_a_plot_is_a_png_in_a_folder_that_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert file_to_draw("made/folder/x") == Path("made/folder/x.png")
    assert file_to_draw("a.b/x.SVG") == Path("a.b/x.SVG")
    assert (tmp_path / "made" / "folder").is_dir()
    (tmp_path / "file").touch()
    for text, message in {
        ".": r"--plot: expected a file, received the folder \.",
        "made/": "--plot: expected a file, received the folder made/",
        "new/": "--plot: expected a file, received the folder new/",
        "file/x.png": "file: cannot be written: ",
        "gs://bucket/x.png": "--plot: expected a path of this machine",
    }.items():
        with pytest.raises(TfdistError, match=message) as caught:
            file_to_draw(text)
        assert caught.value.exit_code == 2


@pytest.mark.skipif(bool(importlib.util.find_spec("matplotlib")), reason="matplotlib is installed")
def test_without_matplotlib_the_remedy_is_named():
    run = simulate("--config", CONFIG, "--workers=1", "--plot=x.png")
    assert run.returncode == 2
    assert "pip install 'tfdist[plots]'" in run.stderr
