"""Hold everything that a config file can say, and read it strictly.

The classes below are the file's sections, and their docstrings and descriptions its reference: the JSON
Schema that editors complete and check the file with is made from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tfdist.cluster import ClusterConfig, ClusterSection, Task
from tfdist.documents import Document, decode, read_yaml_file

__all__ = ["Config", "Settings", "json_schema", "read_config"]

Strategy = Literal[
    "auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "parameter_server_sync"
]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make sections strict: an unknown key is an error."""


class StrategySection(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how the tasks share the work."""

    name: Annotated[Strategy, Meta(description="auto takes one that fits the cluster and the devices.")] = (
        "auto"
    )


class Config(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold a whole config file."""

    cluster: ClusterSection = ClusterSection()
    strategy: StrategySection = StrategySection()


@dataclass(frozen=True)
class Settings:
    """Hold a config that has been read, and where each part of it stood."""

    config: Config
    document: Document

    def find_cluster(
        self, *, task: Task | str | None = None, environ: Mapping[str, str] | None = None
    ) -> ClusterConfig:
        """Give the cluster that the file and the environment describe together."""
        return ClusterConfig.from_section(self.document.part("cluster"), task=task, environ=environ)


def read_config(path: str | PathLike[str]) -> Settings:
    """Read a config file, and refuse what it does not know."""
    document = read_yaml_file(path)
    return Settings(decode(document, Config), document)


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema of the config file."""
    return msgspec.json.schema(Config)
