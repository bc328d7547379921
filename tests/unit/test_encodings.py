"""No file is read or written as text in the encoding of the machine, which is ASCII in some containers."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
# How many arguments come before the encoding; for open also the place of the mode.
BEFORE_ENCODING = {"read_text": 0, "write_text": 1}


def _is_text(mode):
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and "b" not in mode.value


def without_encoding(tree):
    """Yield the lines of the calls that leave the encoding to the machine."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
            continue
        is_method, is_open = isinstance(node.func, ast.Attribute), ast.unparse(node.func) == "open"
        name = node.func.attr if is_method else "open" if is_open else ""
        given = {word.arg: word.value for word in node.keywords}
        if name in BEFORE_ENCODING:
            if len(node.args) <= BEFORE_ENCODING[name]:
                yield node.lineno
        elif is_open:
            mode = given.get("mode", node.args[1] if len(node.args) > 1 else ast.Constant("r"))
            if _is_text(mode):
                yield node.lineno
        elif (
            is_method and name in ("open", "fdopen") and "request" not in ast.unparse(node.func.value).lower()
        ):
            modes = given.get("mode"), *(value for value in node.args if _is_mode(value))
            if any(map(_is_text, modes)) or not (node.args or node.keywords):
                yield node.lineno


def _is_mode(value):
    return (
        isinstance(value, ast.Constant)
        and isinstance(value.value, str)
        and set(value.value) <= set("rwxabt+")
    )


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("path.read_text()", False),
        ("path.read_text('utf-8')", True),
        ("path.write_text(text)", False),
        ("path.write_text(text, encoding='utf-8')", True),
        ("open(path)", False),
        ("open(path, 'rb')", True),
        ("open(path, 'w', encoding='utf-8')", True),
        ("path.open()", False),
        ("path.open('wb')", True),
        ("path.open(mode='a')", False),
        ("os.fdopen(1, 'w')", False),
    ],
)
def test_the_rule_finds_text_without_encoding(text, is_right):
    assert list(without_encoding(ast.parse(text))) == ([] if is_right else [1])


def test_text_files_have_an_encoding():
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in without_encoding(ast.parse(path.read_text("utf-8")))
    ]
    assert wrong == []
