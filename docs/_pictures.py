"""Make the pictures of a run, `images/live_view.svg` and `images/report.png`: `python docs/_pictures.py`.

It trains configs/ps2w.yaml in a terminal of tmux, and opens the page about the run in Debian's chromium.
"""

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

_ROOT = Path(__file__).parents[1]
_IMAGES = Path(__file__).parent / "images"
_COLUMNS = 100
_LINES = 40
_COMMAND = "tfdist train --config configs/ps2w.yaml"
_SECONDS = 600
# rich's pictures load a font from another host.
_FONT_FACES = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_REPORT_PIXELS = "1200,1130"


class Terminal:
    """A terminal of tmux, in a server of its own."""

    def __init__(self, folder: Path, command: str) -> None:
        self._server = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        size = ["-x", str(_COLUMNS), "-y", str(_LINES)]
        self._tmux("new-session", "-d", *size, "-s", "run", "-c", str(folder), f"{command}; sleep {_SECONDS}")

    def _tmux(self, *words: str) -> str:
        return subprocess.run([*self._server, *words], check=True, capture_output=True, text=True).stdout

    def screen(self) -> str:
        """Return what the terminal shows, with the codes of its colours."""
        return self._tmux("capture-pane", "-e", "-p", "-t", "run")

    def screen_with(self, pattern: str) -> str:
        """Wait until the terminal shows what a pattern says, and return its screen."""
        end = time.monotonic() + _SECONDS
        while not re.search(pattern, screen := self.screen()):
            if time.monotonic() > end:
                raise TimeoutError(f"the terminal shows no {pattern!r}:\n{screen}")
            time.sleep(0.2)
        return screen

    def end(self) -> None:
        """End the server and what runs in it."""
        self._tmux("kill-server")


def picture(screen: str) -> str:
    """Return a screen as an SVG."""
    lines = ["$ " + _COMMAND, *screen.rstrip().splitlines()]
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(lines)))
    return _FONT_FACES.sub("", console.export_svg(title="tfdist"))


def main() -> None:
    """Train, and write the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "configs").symlink_to(_ROOT / "configs")
        terminal = Terminal(folder, f"{sys.executable} -m {_COMMAND}")
        try:
            live = terminal.screen_with(r"step 2\d\d of .*accuracy")
            terminal.screen_with(r"tfdist predict")
        finally:
            terminal.end()
        (_IMAGES / "live_view.svg").write_text(picture(live))
        (report,) = folder.glob("runs/*/report.html")
        shot = f"--screenshot={_IMAGES / 'report.png'}"
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={_REPORT_PIXELS}", shot]
        subprocess.run(["chromium", *options, report.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
