"""The contract as a type checker sees it: a right plugin passes ``mypy --strict``, wrong ones fail where they are."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

CASES = Path(__file__).parent / "cases"


def test_mypy_finds_the_mistakes_of_authors_and_nothing_else(tmp_path: Path) -> None:
    expected = {
        (file.name, number, code)
        for file in CASES.glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for code in re.findall(r"\[([a-z-]+)\]", line.partition("# E:")[2])
    }
    options = ["--strict", "--no-error-summary", "--config-file=", f"--cache-dir={tmp_path}"]
    output, problem, _ = api.run([*options, *map(str, sorted(CASES.glob("*.py")))])
    found = {
        (Path(match[1]).name, int(match[2]), match[3])
        for match in re.finditer(r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", output, re.MULTILINE)
    }
    assert (found, problem) == (expected, ""), output
