"""Each code block of the README and the pages fits the code: names, arguments, flags, files and config keys exist."""

import ast
import fractions
import importlib
import importlib.util
import inspect
import itertools
import re
import runpy
import shlex
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import yaml
from absl import flags

import tfdist
from tfdist.cli import _flags_from_signature
from tfdist.cli.commands import COMMANDS
from tfdist.simulation.setup import Setup, read_setup
from tfdist.trainer.config import json_schema, read_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```(\w*)$")
_COMMAND = re.compile(r"^(?:\$ )?((?:[A-Z_]+=\S+ )*)((?:\S*/)?(?:tfdist|python3?|srun|mpirun) .*)$")
_PYTHON = re.compile(
    r"^(from|import|with|for|def|class|@) ?|^\w+(\.\w+)*\(.*\)$|^\w+(, \w+)* = ", re.MULTILINE
)
_YAML = re.compile(r"^[a-z_]+:( |$)(?!.*\b(cannot|became|expected|received|waiting|lost)\b)")


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _blocks(page: Path) -> list[Block]:
    """Return the fenced and the indented blocks of a page."""
    lines, found, at = page.read_text().split("\n"), [], 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            language, first, after = fence[2], at + 1, end + 1
        elif lines[at].startswith("    ") and not lines[at - 1].strip():
            end = next((i for i in range(at, len(lines)) if lines[i] and lines[i][0] != " "), len(lines))
            language, first, after = "", at, end
        else:
            at += 1
            continue
        text = textwrap.dedent("\n".join(lines[first:end])).strip("\n")
        found.append(Block(page, at + 1, language or _language(text), text))
        at = after
    return found


def _language(text: str) -> str:
    """Return the language of a block that names none: what the tasks print is plain text."""
    first = text.split("\n", 1)[0]
    if _COMMAND.match(first):
        return "sh"
    if _YAML.match(first) and "tfdist:" not in first:
        return "yaml"
    return "python" if _PYTHON.match(first) else "text"


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def _keys(struct: type, path: str = "") -> dict[str, object]:
    """Return the keys of a class of a YAML file, and their defaults."""
    found: dict[str, object] = {}
    for key in msgspec.structs.fields(struct):
        kinds = [key.type, *getattr(key.type, "__args__", ())]
        section = next((kind for kind in kinds if isinstance(kind, type(msgspec.Struct))), None)
        if section:
            found |= _keys(section, f"{path}{key.name}.")
        else:
            found[path + key.name] = key.default
    return found


def test_the_page_has_the_keys_of_a_simulation_and_their_defaults():
    page = (ROOT / "docs/simulate.md").read_text()
    table = page.partition("| key | default |")[2].partition("\n\n")[0]
    rows = {cells[1].strip("`"): cells[2].strip("`") for cells in _rows(table)[1:]}
    keys = {name: "" if default is msgspec.NODEFAULT else default for name, default in _keys(Setup).items()}
    shown = {
        name: float(fractions.Fraction(text)) if isinstance(keys.get(name), float) else text
        for name, text in rows.items()
    }
    assert shown == {
        name: str(value).lower() if isinstance(value, (bool, int)) else value for name, value in keys.items()
    }


def _rows(page: str) -> list[list[str]]:
    """Return the cells of each row of the tables of a page."""
    return [[cell.strip() for cell in line.split("|")] for line in page.split("\n") if line.startswith("|")]


def test_the_reference_of_the_config_is_that_of_the_code():
    text = runpy.run_path(str(ROOT / "docs/_configuration.py"))["configuration"]()
    assert (ROOT / "docs/configuration.md").read_text() == text + "\n", (
        "run: python docs/_configuration.py > docs/configuration.md"
    )


@pytest.mark.parametrize("page", ["README.md", "docs/train.md"])
def test_the_whole_config_of_a_page_is_the_shipped_one(page, tmp_path):
    block = next(each for each in BLOCKS if each.page == ROOT / page and "strategy:" in each.text)
    (tmp_path / "ps2w.yaml").write_text(block.text)
    assert read_config(tmp_path / "ps2w.yaml").config == read_config(ROOT / "configs/ps2w.yaml").config


def test_the_files_that_contributors_read_exist():
    named = re.findall(r"`([\w./]+/[\w.]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 30
    assert not [
        name for name in named if not (ROOT / "src/tfdist" / name).exists() and not (ROOT / name).exists()
    ]


def test_one_page_lists_the_variables_of_the_environment():
    rows = _rows((ROOT / "docs/environment.md").read_text())
    listed = {name for row in rows for name in re.findall(r"TFDIST_[A-Z_]+", row[1])}
    shown = {name for page in PAGES for name in re.findall(r"\bTFDIST_[A-Z_]+\b", page.read_text())}
    assert {name for name in shown if not name.startswith("TFDIST_TEST_")} - {"TFDIST_PROGRESS"} == listed
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert [name for name in listed if f'"{name}"' not in code and f"'{name}'" not in code] == []


def _of(*languages: str) -> list[object]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language in languages]


def _words_of_commands(text: str) -> list[list[str]]:
    """Return the words of each tfdist or Python command of a block."""
    found = []
    for line in re.sub(r"\\\n\s*", "", text).split("\n"):
        command = _COMMAND.match(line.strip())
        if command:
            for part in re.split(r"&&|\|", command[2]):
                found.append(shlex.split(re.sub(r" > \S+", "", part), comments=True))
    return found


def _runs_tfdist(words: list[str]) -> list[str] | None:
    """Return the words from the verb on, where a command runs tfdist."""
    for at, word in enumerate(words[:-1]):
        if Path(word).name == "tfdist" or (words[at - 1] == "-m" and word == "tfdist"):
            return words[at + 1 :]
        if word == "-m" and words[at + 1] == "tfdist.train":
            return ["train", *words[at + 2 :]]
        if word == "--":
            return None
    return None


def _check_flags(monkeypatch: pytest.MonkeyPatch, verb: str, words: list[str]) -> None:
    """Parse a command's words with the flags that it defines, and do nothing else."""

    def parse(main, *, flags_from=None, takes_command=False, takes_words=False, **_):
        flags.FLAGS.set_gnu_getopt(takes_words)
        own = {
            **_flags_from_signature._define_flags(main),
            **(_flags_from_signature._define_flags(flags_from) if flags_from else {}),
        }
        _flags_from_signature._parsed(sys.argv, own, takes_command=takes_command or takes_words)

    monkeypatch.setattr(_flags_from_signature, "run", parse)
    monkeypatch.setattr(sys, "argv", [f"tfdist {verb}", *words])
    monkeypatch.delitem(
        sys.modules, f"tfdist.cli.{verb}", raising=False
    )  # runpy warns of a module that is there
    before = set(flags.FLAGS)
    verbosity = flags.FLAGS["verbosity"].help if "verbosity" in before else None
    try:
        runpy.run_module(f"tfdist.cli.{verb}", run_name="__main__")
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)
        if verbosity is not None:
            flags.FLAGS["verbosity"].help = verbosity
        flags.FLAGS.unparse_flags()


def _check_script(words: list[str]) -> None:
    """Check that a script of this repository exists and knows its flags."""
    script = next((word for word in words if re.match(r"(examples|benchmarks)/.*\.py$", word)), None)
    if script is None:
        return
    text = (ROOT / script).read_text()
    for flag in words[words.index(script) + 1 :]:
        name = re.match(r"\[?--(\w+)", flag)
        known = not name or re.search(rf'"(--)?{name[1]}"|\bflags\.{name[1]}\b', text)
        assert known, f"{script} has no flag {flag}"


def test_the_pages_have_blocks():
    assert len(BLOCKS) > 190
    assert {block.language for block in BLOCKS} >= {"python", "sh", "yaml", "text"}


@pytest.mark.parametrize("block", _of("sh", "bash"))
def test_a_command_parses(block, monkeypatch):
    for words in _words_of_commands(block.text):
        own = _runs_tfdist(words)
        if own is not None and own[0] != "--version":
            assert own[0] in COMMANDS, words
            _check_flags(monkeypatch, own[0], [word for word in own[1:] if word != "…"])
            config = dict(itertools.pairwise(own)).get("--config", "")
            assert not config.startswith(("configs/", "examples/")) or (ROOT / config).exists(), config
        _check_script(words)


@pytest.mark.parametrize("block", _of("python"))
def test_names_and_arguments_of_python_exist(block):
    tree = ast.parse(re.sub(r"^( *)…$", r"\1...,", block.text, flags=re.MULTILINE).replace("…", "..."))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tfdist"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("tfdist."):
            _resolve(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("tfdist."):
            _check_arguments(_resolve(ast.unparse(node.func)), node)


@pytest.mark.parametrize("page", ["README.md", "docs/cluster.md", "docs/engines/plugins.md"])
def test_the_first_python_of_a_page_that_does_not_train_runs(page, monkeypatch):
    for variable in ("TF_CONFIG", "TFDIST_HOSTS"):
        monkeypatch.delenv(variable, raising=False)
    first = next(
        block
        for block in BLOCKS
        if block.page == ROOT / page and block.language == "python" and "tfdist.start" not in block.text
    )
    exec(compile(first.text, str(first), "exec"), {"__name__": "__main__"})


def _resolve(name: str) -> object:
    value: object = tfdist
    path = "tfdist"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(value, part):
            assert inspect.ismodule(value), f"there is no {name}"
            assert importlib.util.find_spec(path), f"there is no {name}"
            value = importlib.import_module(path)
        else:
            value = getattr(value, part)
    return value


def _check_arguments(function: object, call: ast.Call) -> None:
    assert callable(function), ast.unparse(call)
    inspect.signature(function).bind_partial(
        *call.args, **{word.arg: word.value for word in call.keywords if word.arg}
    )


@pytest.mark.parametrize("block", _of("yaml"))
def test_keys_of_a_config_exist(block, tmp_path):
    """Read a config, or a part of one, as `tfdist train` does; pages of other tools' files are only parsed."""
    documents = list(yaml.safe_load_all(block.text))
    if "compute" in documents[0]:
        file = ROOT / "examples/simulate/inception.yaml"
        assert msgspec.convert(documents[0], Setup) == read_setup(file)
        return
    sections = json_schema()["$defs"]["Config"]["properties"]
    if not all(isinstance(document, dict) and document.keys() <= sections.keys() for document in documents):
        assert "apiVersion" in documents[0] or "env" in documents[0], (
            f"unknown sections: {documents[0].keys()}"
        )
        return
    for document in documents:
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump({"data": {"name": "digits"}, **document}))
        assert read_config(str(config))
