"""Start a project: ask where to train, how and what, and write a config or a script to begin with.

    tfdist init
    tfdist init FOLDER --where slurm --workers 4 --data cifar10 --model own

With any of the flags but --force, or without a terminal, it asks nothing, and prints the defaults
that it takes. It replaces no file without --force.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tfdist._utils.check_and_expand_paths import exists, is_folder, local_path
from tfdist._utils.write_files import write_output
from tfdist.cli._flags_from_signature import Flag, run
from tfdist.errors import ConfigError
from tfdist.launcher.share_cores_and_gpus import own_cores, own_gpus
from tfdist.trainer.new_project_answers import (
    DATA,
    MODELS,
    PLACES,
    QUESTIONS,
    STRATEGIES,
    Machine,
    Project,
    applies,
    check_answer,
    complete_answers,
    default_answer,
    question,
)
from tfdist.trainer.new_project_files import project_files

_CHOICES = {"where": PLACES, "strategy": STRATEGIES, "data": DATA, "model": MODELS}


class _Answers(NamedTuple):
    """The answers to `QUESTIONS` that flags give."""

    where: Annotated[str | None, Flag(f"Where it will run: {', '.join(PLACES)}.")] = None
    hosts: Annotated[str | None, Flag("With ssh: the hosts, such as node1,me@node2.")] = None
    image: Annotated[str | None, Flag("With kubernetes: the image of the tasks.")] = None
    strategy: Annotated[str | None, Flag(f"How the tasks share the work: {', '.join(STRATEGIES)}.")] = None
    workers: Annotated[int | None, Flag("How many workers, or devices of mirrored.")] = None
    ps: Annotated[int | None, Flag("How many parameter servers.")] = None
    data: Annotated[str | None, Flag("A data set, a folder of images, or script for data of your own.")] = (
        None
    )
    model: Annotated[str | None, Flag(f"{', '.join(MODELS)}, or my_package.my_module:function.")] = None


def main(
    command: Sequence[str], force: Annotated[bool, Flag("Replace files that exist.")] = False, **flags: Any
) -> None:
    """Write the files of a project; `flags` are the answers to `QUESTIONS`, None for those not given."""
    if len(command) > 1:
        raise ConfigError("command line", expected="one folder", received=str(len(command)))
    folder = local_path(command[0] if command else ".", "FOLDER")
    given = {key: answer for key, answer in flags.items() if answer is not None}
    machine = Machine(len(own_cores()), len(own_gpus()))
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    asks = has_terminal and not given
    project, defaults = complete_answers(_ask_all(machine) if asks else given, machine)
    if defaults:
        reason = "" if has_terminal else "no terminal to ask on; "
        print(f"{reason}defaults: {', '.join(f'{key} {_text(value)}' for key, value in defaults.items())}")
    _write(project, folder, force)


def _write(project: Project, folder: Path, force: bool) -> None:
    """Write the files, and print the commands to type next."""
    project = project.placed_in(folder)
    files = {folder / name: text for name, text in project_files(project).items()}
    for path in files:
        if is_folder(path) or (exists(path) and not force):
            remedy = "--force replaces it, or name another folder"
            if path.name == "model.py":
                remedy += "; --model model:build takes a function that it has"
            raise ConfigError(str(path), "exists already", remedy=remedy)
    for path, text in files.items():
        write_output(path, text.encode())
    print(f"wrote {', '.join(map(str, files))}\n\nNext:\n")
    for command in project.next_commands(folder):
        print(f"    {command}")


def _ask_all(machine: Machine) -> dict[str, Any]:
    """Ask each question that applies after the answers to those before it."""
    print("Return takes the answer in brackets; Ctrl-C ends, and writes nothing.")
    answers: dict[str, Any] = {}
    for key in QUESTIONS:
        if applies(key, answers, machine):
            answers[key] = _ask(key, answers, machine)
    print()
    return answers


def _ask(key: str, answers: Mapping[str, Any], machine: Machine) -> Any:
    """Ask one question until the answer is possible."""
    choices = list(_CHOICES.get(key, {}))
    print(f"\n{question(key, answers)}")
    for number, name in enumerate(choices, 1):
        print(f"  {number}  {name:<23}{_CHOICES[key][name]}")
    default = default_answer(key, answers, machine)
    while True:
        try:
            typed = input(f"[{_text(default)}] ").strip() or default
        except EOFError:
            print()
            raise ConfigError("tfdist init", "the input ended before the last answer") from None
        if choices and str(typed).isdecimal():
            if not 0 < int(typed) <= len(choices):
                print(f"  expected a number from 1 to {len(choices)}, or a word; received {typed}")
                continue
            typed = choices[int(typed) - 1]
        try:
            return check_answer(key, typed, answers)
        except ConfigError as error:
            print(f"  {str(error).removeprefix(f'--{key}: ')}")


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


if __name__ == "__main__":
    run(main, flags_from=_Answers, takes_words=True)
