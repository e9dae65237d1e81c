"""Keeps the generated blocks of README.md equal to what they show.

    readme_includes.py           says which blocks are stale; exit code 1 if any is
    readme_includes.py --write   writes them anew

A block stands between two comments::

    <!-- file: examples/x.py -->    the file, as a fenced block
    <!-- options: local -->         options of a store, ``common`` or ``writer``, as a table
    <!-- run: fd-routing list -->   a command and what it prints
    <!-- rows: fd-routing list -->  the same, where further rows do not matter
    <!-- session: A && B -->        commands and what they print, after the page's runnable Python
    <!-- end -->
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

from fastdeploy_routing_plugins.config import CommonOptions, OptionInfo, describe
from fastdeploy_routing_plugins.spec import ENTRY_POINT_GROUP
from fastdeploy_routing_plugins.writer.limits import WriterLimits

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- (file|options|run|rows|session): (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
RUNNABLE = re.compile(r"<!-- runnable -->\n```python\n(.*?)```", re.DOTALL)
SESSION = '{"routing_store_type": "local", "routing_store_config": {"store_dir": "./routing", "namespace": "run-42"}}'
OTHER_OPTIONS = {"common": CommonOptions, "writer": WriterLimits}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "sh"}


def refresh(text: str) -> tuple[str, list[str]]:
    """Returns the text with every block made anew, and the headings of those that were stale."""
    stale: list[str] = []
    python = "\n".join(RUNNABLE.findall(text))
    blocks = {"file": file_block, "options": options_block, "run": lambda what: run_block([what])}
    blocks["rows"] = blocks["run"]
    blocks["session"] = lambda what: run_block(what.split(" && "), python, SESSION)

    def replace(match: re.Match[str]) -> str:
        begin, kind, what, old, end = match.groups()
        new = blocks[kind](what)
        if kind == "rows" and words(old) and words(old) <= words(new):
            new = old  # another environment offers more
        if new != old:
            stale.append(f"{kind}: {what}")
        return f"{begin}{new}{end}"

    return BLOCK.sub(replace, text), stale


def words(block: str) -> set[tuple[str, ...]]:
    """Returns a block's lines without their spacing."""
    return {tuple(line.split()) for line in block.splitlines()}


def file_block(path: str) -> str:
    """Returns a file as a fenced block."""
    content = (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    return f"```{LANGUAGES[Path(path).suffix]}\n{content}\n```\n"


def options_block(store: str) -> str:
    """Returns a store's options, the ``common`` ones of every store, or those of the ``writer``, as a table."""
    if store in OTHER_OPTIONS:
        infos = describe(OTHER_OPTIONS[store])
    else:
        (point,) = [entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name == store]
        infos = describe(point.load().fd_routing_store().load_config())
    if not infos:
        return "No options of its own.\n"
    rows = [f"| `{i.name}` | {i.type} | {default(i)} | {i.doc} |".replace(" | None", " or null") for i in infos]
    return "\n".join(["| option | type | default | |", "|---|---|---|---|", *rows, ""])


def default(info: OptionInfo) -> str:
    """Returns an option's default as JSON."""
    return "required" if info.required else f"`{json.dumps(info.default)}`"


def run_block(commands: list[str], python: str = "", config: str = "") -> str:
    """Returns commands and their output; they run in a folder of their own.

    Args:
        commands: The command lines.
        python: What runs first.
        config: The store that the commands use.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("FD_")}
    env |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}", "COLUMNS": "110"}
    lines = []
    if config:
        env["FD_ROUTING_STORE_CONFIG"] = config
        lines.append(f"$ export FD_ROUTING_STORE_CONFIG='{config}'")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", python], cwd=folder, env=env, check=True)
        for command in commands:
            done = subprocess.run(
                shlex.split(command), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            lines += [f"$ {command}", *map(str.rstrip, done.stdout.strip("\n").splitlines())]
    return "```console\n" + "\n".join(lines) + "\n```\n"


def main() -> int:
    """Checks, or with ``--write`` refreshes, README.md."""
    old = README.read_text(encoding="utf-8")
    new, stale = refresh(old)
    if "--write" in sys.argv[1:]:
        README.write_text(new, encoding="utf-8")
        return 0
    for heading in stale:
        print(f"README.md is stale: {heading} (make docs)", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    raise SystemExit(main())
