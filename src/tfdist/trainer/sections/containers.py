"""The sections `engine.compose` and `engine.dockerfile`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["ComposeSection", "DockerfileSection"]


class ComposeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the containers of `tfdist submit compose`, one for each task."""

    image: Annotated[
        str,
        Meta(description="The image of the tasks, which has tfdist; `tfdist render dockerfile` makes one."),
    ] = "tfdist"
    code: Annotated[
        Literal["mount", "image"],
        Meta(
            description="Where the code of scripts and of my_package.my_module is: in the current folder,"
            " which the containers mount at the same path, or in the image."
        ),
    ] = "mount"
    runs: Annotated[
        str | None,
        Meta(description="A named volume for the runs; by default, a folder of this machine: --run_dir."),
    ] = None
    cache: Annotated[
        str | None,
        Meta(
            description="A named volume for prepared data; by default, the cache folder of this machine:"
            " TFDIST_CACHE_DIR."
        ),
    ] = None
    data: Annotated[
        str | None,
        Meta(
            description="A named volume or a folder with the data sets of tensorflow-datasets; by default,"
            " TFDS_DATA_DIR of this machine."
        ),
    ] = None
    volumes: Annotated[
        list[str], Meta(description="More volumes of each container, such as /data/images:/data/images:ro.")
    ] = []
    environment: Annotated[
        dict[str, str | int | float], Meta(description="More variables of each container.")
    ] = {}
    gpus: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        Meta(description="How many GPUs of the machine each task of a role has to itself: {worker: 1}."),
    ] = {}
    internal: Annotated[
        bool,
        Meta(description="Whether the tasks reach nothing but each other; with false they can download."),
    ] = True
    restarts: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="How often a container is started again that has not ended with 0."),
    ] = 3
    stop_grace_period: Annotated[
        Annotated[int, Meta(ge=1)],
        Meta(description="Seconds that a task has to save its work when it is told to end."),
    ] = 60
    service: Annotated[
        dict[str, Any],
        Meta(
            description="Any other keys of a service of Compose, such as mem_limit: 8g. worker:mem_limit is"
            " for the tasks of that role alone."
        ),
    ] = {}


class DockerfileSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure the image of `tfdist render dockerfile`."""

    base: Annotated[
        str | None,
        Meta(description="The image to begin with, which has Python; by default, Debian's of this Python."),
    ] = None
    tfdist: Annotated[
        str | None,
        Meta(
            description="What pip installs as tfdist: a requirement, or the name of a wheel in the folder of"
            " the Dockerfile; by default, this version."
        ),
    ] = None
    packages: Annotated[
        list[str], Meta(description="More packages for pip, such as matplotlib==3.10.0.")
    ] = []
    copy: Annotated[
        list[str], Meta(description="Files and folders of your code that the image contains, in /app.")
    ] = []
