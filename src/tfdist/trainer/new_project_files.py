"""Write the files of a new project as text: a config with comments, a model, a script."""

import json
import re

import yaml

from tfdist.trainer.new_project_answers import STRATEGIES, Project

CONFIG, MODEL, SCRIPT = "train.yaml", "model.py", "script.py"
_SUBSTITUTES = {"mnist": "digits", "cifar10": "shapes"}
_PLAIN = re.compile(r"[A-Za-z./~][\w./~:-]*")
_COLUMN = 22  # of comments
_Rows = list[tuple[str, str]]

_MODEL = '''\
"""The model: change it as you like. The config, or the script, calls `build`."""

import tensorflow as tf

layers = tf.keras.layers


def build(image_shape, classes, *, width=32):
    """Return a model that takes pixels from 0 to 255, and returns one logit for each class."""
    return tf.keras.Sequential(
        [
            tf.keras.Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(4 * width, activation="relu"),
            layers.Dense(classes),
        ]
    )
'''

_SCRIPT = '''\
"""Train a model on one process or on a cluster: all tasks run this file. Change it as you like.

    {commands}
"""

{os}import tensorflow as tf

import tfdist
from tfdist.datasets import open_data
{imported}
EPOCHS = 2
BATCH = {batch}  # examples of a step, {of_batch}
SAVED = {saved}


def load():
    """Return training and test data as arrays. Load your own here, or return a tf.data.Dataset of batches."""
    digits = open_data("digits", examples=(6000, 1000))
    [train] = digits.train(6000).take(1).as_numpy_iterator()
    [test] = digits.test(1000).take(1).as_numpy_iterator()
    return train, test


def main():
    """Train, evaluate and save."""
    # A parameter server, or a worker beside one, serves in this line until the chief has ended.
    {start}

    (x, y), (x_test, y_test) = load()
    model = {built}
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS)
    loss, accuracy = model.evaluate(x_test, y_test, batch_size=BATCH, verbose=0)
    tfdist.save(model, SAVED)  # all tasks call it; the chief writes
    if tfdist.is_chief():
        print(f"test accuracy {{accuracy:.4f}}, saved as {{SAVED}}")


if __name__ == "__main__":
    main()
'''


def project_files(project: Project) -> dict[str, str]:
    """Return the text of each file of a project, by its name."""
    files = {SCRIPT: _script(project)} if project.is_script else {CONFIG: _config(project)}
    return {**files, **({MODEL: _MODEL} if project.model == "own" else {})}


def _script(project: Project) -> str:
    module, _, function = (project.function or "tfdist.models:build").partition(":")
    named = "" if project.function else f'"{project.model}", '
    imported = f"from {module} import {function}\n"
    saved = '"model.keras"'
    if project.where == "kubernetes":  # where only the volume can be written to
        saved = '"/tfdist/model.keras" if os.path.isdir("/tfdist") else "model.keras"'
    return _SCRIPT.format(
        commands="\n    ".join(project.run_commands()),
        os="import os\n\n" if "os." in saved else "",
        imported=imported if module.startswith("tfdist.") else f"\n{imported}",
        batch=_batch(project),
        of_batch=_of_batch(project),
        saved=saved,
        start=f"tfdist.start({_start_arguments(project)})",
        built=f"{function}({named}x.shape[1:], classes=10)",
    )


def _start_arguments(project: Project) -> str:
    """Return the arguments of `tfdist.start`, which chooses by itself among strategies of several tasks."""
    if project.strategy in ("multi_worker_mirrored", "parameter_server"):
        return ""
    devices = f", logical_devices={project.workers}" if project.splits_cpu else ""
    return f'"{project.strategy}"{devices}'


def _config(project: Project) -> str:
    """Return the config, with a comment on each key."""
    sections: dict[str, _Rows] = {
        "cluster": _cluster(project),
        "strategy": _strategy(project),
        "data": _data(project),
        "model": _model(project),
        "train": _TRAIN,
        "engine": _engine(project),
    }
    lines = [
        "# What is trained, and where. `tfdist schema` describes all keys; those left out have defaults.",
        "#",
        *(f"#     {command}" for command in project.run_commands()),
    ]
    for name, rows in sections.items():
        if rows:
            lines += ["", f"{name}:", *_aligned(rows)]
    return "\n".join(lines) + "\n"


def _aligned(rows: _Rows) -> list[str]:
    """Return the keys of a section, and their comments in one column."""
    width = max(_COLUMN, *(len(key) + 2 for key, comment in rows if comment))
    return [f"  {key:<{width}}{'# ' + comment if comment else ''}".rstrip() for key, comment in rows]


_TRAIN: _Rows = [
    ("epochs: 3", "passes through the training data; or steps: 1000"),
    ("optimizer: adam", "a name of Keras's, or {name: adamw, weight_decay: 0.01}"),
    ("learning_rate: 0.001", "at its highest"),
    ("schedule: cosine", "down to 0 at the last step; or constant"),
    ("seed: 0", "of the initial weights, and of the order of the examples"),
]


def _cluster(project: Project) -> _Rows:
    if not project.is_cluster:
        return []
    if not project.ps:
        return [(f"worker: {project.workers}", "worker 0 is the chief: it writes the model")]
    return [
        ("chief: 1", "coordinates, evaluates, and writes the model"),
        (f"worker: {project.workers}", "compute"),
        (f"ps: {project.ps}", "hold the variables"),
    ]


def _strategy(project: Project) -> _Rows:
    others = ", ".join(name for name in STRATEGIES if name != project.strategy)
    rows = [(f"name: {project.strategy}", STRATEGIES[project.strategy]), ("", f"or {others}")]
    if project.splits_cpu:
        devices = f"logical_devices: {project.workers}"
        rows.append((devices, "made of the CPU, to try it; GPUs, where there are any, are taken as they are"))
    return rows


def _data(project: Project) -> _Rows:
    is_folder = project.data.startswith(("/", "./", "../", "~"))
    is_elsewhere = is_folder and project.where != "here"
    kinds = "a set of tensorflow-datasets, digits, shapes, or ./a_folder"
    rows = [(f"name: {_quoted(project.data)}", "this path on all machines" if is_elsewhere else kinds)]
    if project.data in _SUBSTITUTES:
        drawn = _SUBSTITUTES[project.data]
        rows.append(
            (f"if_unavailable: {drawn}", "without network, train on images that tfdist draws; or fail")
        )
    if is_folder:
        rows.append(("image_size: [64, 64]", "height and width to which images are resized"))
    rows.append((f"batch_size: {_batch(project)}", f"examples of a step, {_of_batch(project)}"))
    augment = "shift_flip" if project.model == "cifar10_cnn" else "none"
    rows.append((f"augment: {augment}", "of training images: none, shift, shift_flip, crop_flip"))
    return rows


def _batch(project: Project) -> int:
    return 128 if project.strategy == "parameter_server" else max(128, 32 * project.workers)


def _of_batch(project: Project) -> str:
    if project.strategy == "parameter_server":
        return "of one worker, because each has its own pace"
    return "over all workers together" if project.is_cluster else "over all devices together"


def _model(project: Project) -> _Rows:
    if not project.function:
        kinds = "mnist_cnn, cifar10_cnn, resnet, or your own as my_package.my_module:function"
        return [(f"name: {project.model}", kinds)]
    rows = [(f"name: {_quoted(project.function)}", "your function, found from the folder that you start in")]
    return rows + ([("options: {width: 32}", "its arguments")] if project.model == "own" else [])


def _engine(project: Project) -> _Rows:
    """Return the section that `tfdist submit` reads."""
    is_mirrored = project.strategy == "mirrored"
    gpus = project.workers if is_mirrored else 0
    if project.where == "ssh":
        return [
            ("ssh:", ""),
            (
                f"  hosts: [{', '.join(map(_quoted, project.hosts))}]",
                "as ssh names them; tasks go to them in turn",
            ),
            ("  # python: /home/me/.venv/bin/python", "the interpreter there; the path of this one"),
            ("  # folder: /home/me/project", "the folder there with your code; the path of this one"),
        ]
    if project.where == "slurm":
        sbatch = f'{{gres: "gpu:{gpus}"}}' if gpus else "{}"
        return [
            ("slurm:", ""),
            (
                f"  sbatch: {sbatch}",
                "options of sbatch, such as {partition: gpu, time: 60, cpus-per-task: 8}",
            ),
        ]
    if project.where == "ray":
        resources = f"{{CPU: 2, GPU: {gpus}}}" if gpus else "{CPU: 1}"
        return [
            ("ray:", ""),
            (
                f"  resources: {{worker: {resources}}}",
                "of each task: CPU is its threads too; GPU: 1 asks for one",
            ),
            ("  runtime_env: {working_dir: .}", "sends this folder to the nodes"),
        ]
    return _kubernetes(project, gpus) if project.where == "kubernetes" else []


def _kubernetes(project: Project, gpus: int) -> _Rows:
    copied: _Rows = []
    if project.copied:
        names = ", ".join(map(_quoted, project.copied))
        copied = [("dockerfile:", ""), (f"  copy: [{names}]", "what `tfdist render dockerfile` adds")]
    return [
        *copied,
        ("kubernetes:", ""),
        (f"  image: {_quoted(project.image)}", "has Python, tfdist and your code"),
        ("  namespace: default", "of the job"),
        ("  resources:", "of each task, by role; gpus: 1 asks for a GPU"),
        (f"    worker: {{cpu: 2, memory: 4Gi{f', gpus: {gpus}' if gpus else ''}}}", ""),
        ("    all: {cpu: 1, memory: 2Gi}", "what a role does not name"),
        ("  volume: {size: 10Gi}", "of runs and data, which all tasks share; it stays"),
    ]


def _quoted(text: str) -> str:
    """Return a text as YAML reads it back."""
    return text if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)
