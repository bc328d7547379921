"""Decide what a new project is: the answers of `tfdist init`, their defaults, and the next commands."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfdist._utils.check_and_expand_paths import current_folder, exists, expanded_path, path_or_address
from tfdist.errors import ConfigError, did_you_mean, shown
from tfdist.strategies.strategy_names import OF_ONE_PROCESS, OF_PS

PLACES = {
    "here": "all tasks on this machine",
    "ssh": "several machines that you can log in to",
    "slurm": "a Slurm cluster",
    "kubernetes": "a Kubernetes cluster",
    "ray": "a Ray cluster",
}
STRATEGIES = {
    "one_device": "one process, one device: to debug and to compare",
    "mirrored": "one process on several GPUs of a machine, in step",
    "multi_worker_mirrored": "several workers in step; each has all variables",
    "parameter_server": "workers at their own pace: a slow one stops nobody",
    "parameter_server_sync": "workers in step; variables on parameter servers",
}
DATA = {
    "digits": "drawn digits of MNIST's shape: no download",
    "mnist": "or another image set of tensorflow-datasets",
    "./photos": "your own images, in a folder for each class",
    "script": "data of your own: you get a script to change",
}
MODELS = {
    "mnist_cnn": "two convolutions, 3.3 million weights",
    "cifar10_cnn": "a CNN for small colour images, 1.1 million",
    "resnet": "a residual network of 20 layers, 0.27 million",
    "own": "a function of your own: you get one to change",
}
# In the order in which they are asked; hosts, image and ps apply to some answers only.
QUESTIONS = {
    "where": "Where will it run?",
    "hosts": "Which hosts, as ssh names them?",
    "image": "Which container image has Python, tfdist and your code?",
    "strategy": "How do the tasks share the work?",
    "workers": "How many workers?",
    "ps": "How many parameter servers?",
    "data": "Which data?",
    "model": "Which model?",
}
_LIKE_MNIST = ("digits", "mnist", "fashion_mnist", "kmnist", "script")
_LIKE_CIFAR = ("cifar10", "cifar100", "shapes")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_HOST = re.compile(r"[A-Za-z0-9][\w.@:-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][\w./:@-]*")


@dataclass(frozen=True)
class Machine:
    """What this machine has for training."""

    cores: int
    gpus: int


@dataclass(frozen=True)
class Project:
    """All answers; those that do not apply keep their defaults.

    Attributes:
        where: A key of `PLACES`.
        strategy: A key of `STRATEGIES`.
        data: The name or path of the data, or `script`.
        model: The name of a model of tfdist, `own`, or the user's function as `package.module:function`.
        workers: The number of workers; of devices under mirrored.
        ps: The number of parameter servers.
        hosts: The hosts for ssh.
        image: The image for Kubernetes.
        splits_cpu: Whether mirrored has no GPU here, and takes devices made of the CPU.
        place: The path of the project from the folder in which its commands are typed; empty for the same.
    """

    where: str
    strategy: str
    data: str
    model: str
    workers: int = 1
    ps: int = 0
    hosts: tuple[str, ...] = ()
    image: str = ""
    splits_cpu: bool = False
    place: str = ""

    @property
    def is_cluster(self) -> bool:
        """Return whether the project trains as a cluster."""
        return self.strategy not in OF_ONE_PROCESS

    @property
    def is_script(self) -> bool:
        """Return whether a script of the user's own trains, in place of a config."""
        return self.data == "script"

    @property
    def function(self) -> str:
        """Return the user's function that builds the model; empty for a model of tfdist."""
        return "model:build" if self.model == "own" else self.model if ":" in self.model else ""

    @property
    def package(self) -> str:
        """Return the first part of the module of the user's own function, which exists already."""
        return "" if self.model == "own" else self.function.partition(":")[0].partition(".")[0]

    def placed_in(self, folder: Path) -> "Project":
        """Return the project with paths that are right in a folder, which may not exist yet.

        A function that is found from the current folder is not found from another one, so the commands are
        to be typed here. Data have another path from there.

        Raises:
            ConfigError: The tasks cannot get a script from there.
        """
        here = current_folder()
        if here is None or folder.resolve() == here.resolve():
            return self
        gets_copies = self.where in ("kubernetes", "ray")  # in an image, or of the current folder
        if self.package and (exists(here / self.package) or exists(here / f"{self.package}.py")):
            path, root = folder.resolve(), here.resolve()
            if path.is_relative_to(root):
                return replace(self, place=str(path.relative_to(root)))
            if self.is_script and gets_copies:
                problem = f"with {self.where}, tasks get only what is in the current folder"
                raise ConfigError(str(folder), problem, remedy="Name a folder in it")
            return replace(self, place=str(folder))
        if gets_copies or not self._has_data_below(here):
            return self
        data = os.path.relpath(here.resolve() / self.data, folder.resolve())
        return replace(self, data=data if data.startswith("../") else f"./{data}")

    def _has_data_below(self, here: Path) -> bool:
        """Return whether the data are a path from a folder, not one from the root, or a name."""
        if not self.data.startswith(("./", "../")):
            sets = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
            if exists(expanded_path(sets, "TFDS_DATA_DIR") / self.data):  # which comes before a folder here
                return False
            if self.data in (*_LIKE_MNIST, *_LIKE_CIFAR) or self.data.startswith(("/", "~")):
                return False
        return exists(here / self.data)

    @property
    def copied(self) -> list[str]:
        """Return what an image needs of the user's code, from the folder in which the commands are typed."""
        if self.model == "own":
            return ["model.py"]
        if not self.place:
            return []
        return [self.package if exists(self.package) else f"{self.package}.py"]

    def path(self, name: str) -> str:
        """Return the path of a file of the project, as a word of its commands."""
        return shlex.quote(f"{self.place}/{name}") if self.place else name

    def next_commands(self, folder: Path) -> list[str]:
        """Return the commands to type next, from the current folder to the one with the files."""
        is_here = bool(self.place) or folder.resolve() == current_folder()
        images = self._image_commands() if self.where == "kubernetes" else []
        return [*([] if is_here else [f"cd {shlex.quote(str(folder))}"]), *images, *self.run_commands()]

    def run_commands(self) -> list[str]:
        """Return the commands that try the project, and then train."""
        if self.is_script:
            return self._script_commands()
        config = self.path("train.yaml")
        check = f"tfdist train --config {config}"
        if self.where == "here":
            return [f"{check} --smoke    # a few steps, to try everything", check]
        return [
            f"{check} --dry_run    # checks everything",
            f"tfdist submit {self.where} --config {config}",
        ]

    def script_command(self) -> str:
        """Return the command that runs the script as this project's tasks."""
        counts = f"--workers {self.workers if self.is_cluster else 1}{f' --ps {self.ps}' if self.ps else ''}"
        if self.where == "here":
            return f"tfdist launch {counts} -- {self._script}" if self.is_cluster else self._script
        options = {
            "ssh": f" --option hosts={','.join(self.hosts)}",
            "kubernetes": f" --option image={self.image}",
            "ray": " --option working_dir=.",
            "slurm": "",
        }[self.where]
        options += self._gpu_options() if self.strategy == "mirrored" else ""
        return f"tfdist submit {self.where} {counts}{options} -- {self._script}"

    @property
    def _script(self) -> str:
        """Return the command of a task; Python searches the folder of a script, not the current one."""
        return f"env PYTHONPATH=. python {self.path('script.py')}" if self.place else "python script.py"

    def _script_commands(self) -> list[str]:
        if self.script_command() == self._script:
            return [self._script]
        is_alone_too = self.strategy != "parameter_server_sync"  # which needs its ps
        alone = [f"{self._script}    # one process, to try it"] if is_alone_too else []
        return [*alone, self.script_command()]

    def _gpu_options(self) -> str:
        """Return the options that ask for the GPUs of mirrored's one process."""
        return {
            "slurm": f" --sbatch gres=gpu:{self.workers}",
            "kubernetes": f" --option resources.worker.gpus={self.workers}",
            "ray": f" --option worker:GPU={self.workers}",
        }.get(self.where, "")

    def _image_commands(self) -> list[str]:
        config = "" if self.is_script else f" --config {self.path('train.yaml')}"
        names = [*self.copied, f"{self.place}/script.py"]
        copied = [f"COPY {json.dumps([name, f'/app/{name}'], ensure_ascii=False)}" for name in names]
        copied = copied if self.place else ["COPY *.py /app/"]
        return [
            f"tfdist render dockerfile{config} -o Dockerfile",
            *(f"echo {shlex.quote(line)} >> Dockerfile" for line in copied if self.is_script),
            f"docker build -t {self.image} . && docker push {self.image}",
        ]


def applies(key: str, answers: Mapping[str, Any], machine: Machine) -> bool:
    """Return whether a question applies after the answers to those before it."""
    strategy = answers.get("strategy")
    if key == "workers":
        is_all_gpus = strategy == "mirrored" and answers["where"] == "here" and machine.gpus > 0
        return strategy != "one_device" and not is_all_gpus
    needs = {"hosts": answers.get("where") == "ssh", "image": answers.get("where") == "kubernetes"}
    return {**needs, "ps": strategy in OF_PS}.get(key, True)


def question(key: str, answers: Mapping[str, Any]) -> str:
    """Return the text of a question after the answers to those before it."""
    is_mirrored = key == "workers" and answers["strategy"] == "mirrored"
    return "How many GPUs, or devices made of the CPU?" if is_mirrored else QUESTIONS[key]


def default_answer(key: str, answers: Mapping[str, Any], machine: Machine) -> Any:
    """Return the default of a question after the answers to those before it."""
    if key == "strategy":
        is_here = answers["where"] == "here"
        return "mirrored" if is_here and machine.gpus > 1 else "multi_worker_mirrored"
    if key == "workers":
        if answers["where"] == "ssh":
            return len(answers["hosts"])
        return max(1, machine.gpus or min(2, machine.cores)) if answers["where"] == "here" else 2
    if key == "model":
        data = answers["data"]
        return "mnist_cnn" if data in _LIKE_MNIST else "cifar10_cnn" if data in _LIKE_CIFAR else "resnet"
    fixed = {"where": "here", "hosts": ("node1", "node2"), "image": "registry.example/me/train:1"}
    return {**fixed, "ps": 1, "data": "digits"}[key]


def check_answer(key: str, value: Any, answers: Mapping[str, Any]) -> Any:
    """Return an answer as `Project` has it.

    Raises:
        ConfigError: It is none of the possible ones.
    """
    where = f"--{key}"
    if key in ("where", "strategy"):
        known = PLACES if key == "where" else STRATEGIES
        if value not in known:
            raise ConfigError(where, f"is unknown: {shown(value)}", remedy=did_you_mean(value, known))
    elif key in ("workers", "ps"):
        if not re.fullmatch(r"[1-9][0-9]{0,2}", str(value)):
            raise ConfigError(where, expected="a number from 1 to 999", received=shown(value))
        return int(value)
    elif key == "hosts":
        hosts = tuple(filter(None, re.split(r"[\s,]+", value))) if isinstance(value, str) else value
        for host in hosts or ("",):
            if not _HOST.fullmatch(host):
                raise ConfigError(where, expected="hosts, such as node1,me@node2", received=shown(host))
        return hosts
    elif key == "image":
        if not _IMAGE.fullmatch(value):
            raise ConfigError(where, expected="an image, such as registry/train:1", received=shown(value))
    elif key == "data":
        _check_data(value, answers)
    elif value not in MODELS and not _FUNCTION.fullmatch(value):
        remedy = did_you_mean(value, MODELS, other="or your own as my_package.my_module:function")
        raise ConfigError(where, f"is unknown: {shown(value)}", remedy=remedy)
    return value


def _check_data(value: str, answers: Mapping[str, Any]) -> None:
    if not value.strip() or not value.isprintable():
        raise ConfigError("--data", expected="a name, a folder or script", received=shown(value))
    place = path_or_address(value, "--data")
    is_path = value.startswith(("/", "./", "../", "~"))
    # On other machines a path is theirs.
    is_here = answers["where"] == "here" and isinstance(place, Path)
    if is_path and is_here and not exists(expanded_path(Path(value), "--data")):
        raise ConfigError(
            "--data", f"{value} does not exist", remedy="Name a folder of images, or a data set"
        )


def complete_answers(given: Mapping[str, Any], machine: Machine) -> tuple[Project, dict[str, Any]]:
    """Return the project that some answers and the defaults of all others describe, and these defaults.

    Raises:
        ConfigError: An answer is wrong, or does not apply.
    """
    answers: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for key in QUESTIONS:
        if applies(key, answers, machine):
            if key not in given:
                defaults[key] = default_answer(key, answers, machine)
            answers[key] = check_answer(key, given.get(key, defaults.get(key)), answers)
        elif key in given and not (key == "workers" and _is_said_already(given[key], answers, machine)):
            problem = f"has no effect with {answers.get('strategy') or answers['where']}"
            raise ConfigError(f"--{key}", problem, remedy="Leave it out")
    splits_cpu = answers["strategy"] == "mirrored" and answers["where"] == "here" and not machine.gpus
    return Project(**answers, splits_cpu=splits_cpu), defaults


def _is_said_already(workers: Any, answers: Mapping[str, Any], machine: Machine) -> bool:
    return bool(workers == (1 if answers["strategy"] == "one_device" else machine.gpus))
