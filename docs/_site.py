"""Make the pages of the site that are not files of docs/: the README, the changes, and the API."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import tfdist.launcher

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
# What programs use of the packages, besides the names of tfdist itself.
_BESIDE = {
    "Errors": ["tfdist.errors"],
    "Data": ["tfdist.datasets.open_data.open_data", "tfdist.datasets.open_data.Data"],
    "A launcher of your own": [f"tfdist.launcher.{name}" for name in tfdist.launcher.__all__],
    "Ray": ["tfdist.ray.launch"],
    "A plug-in for an engine": [
        "tfdist.engines.job_description.Job",
        "tfdist.engines.job_handle_and_state.Handle",
        "tfdist.engines.job_handle_and_state.State",
        "tfdist.engines.log_files_and_exit_status.lines_of",
    ],
}
_OTHER_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    pages = {
        "index.md": (ROOT / "README.md").read_text(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(),
        "api.md": _api(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=_LINK.sub(_from_root, text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Write names of files outside of the pages as code: the site does not have them."""
    del config
    folder = Path(page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = target.partition("#")[0]
        if not path or "://" in path or files.get_file_from_path(_joined(folder, path)) is not None:
            return link[0]
        return text if text.startswith("`") else f"`{text}`"

    return _LINK.sub(replaced, markdown)


def _from_root(link: re.Match[str]) -> str:
    """Return a link of the README as one of a page in docs/."""
    text, target = link.groups()
    path = _OTHER_PAGES.get(target, target.removeprefix("docs/"))
    return f"[{text}]({'engines/README.md' if path == 'engines/' else path})"


def _joined(folder: Path, path: str) -> str:
    parts: list[str] = []
    for part in (folder / path).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _api() -> str:
    lines = [
        "# API",
        "",
        "`import tfdist` loads no TensorFlow. It is loaded when a name that needs it is used.",
        "",
    ]
    lines += [f"::: tfdist.{name}\n" for name in tfdist.__all__]
    for title, names in _BESIDE.items():
        lines += [f"## {title}\n", *(f"::: {name}\n" for name in names)]
    return "\n".join(lines)
