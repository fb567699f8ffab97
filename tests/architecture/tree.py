"""The tree under inspection: every rule is a function of a Tree, so that a test can hand it a planted one."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SKIP = {"__pycache__", "node_modules", "dist"}  # besides all hidden folders, when there is no git to ask


@dataclass(frozen=True, order=True)
class Finding:
    """One thing wrong in one place."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass
class Tree:
    """The files of a checkout: those git tracks or would track; in a bare directory, all of them."""

    root: Path = ROOT
    unreadable: list[Finding] = field(default_factory=list)
    _texts: dict[Path, str] = field(default_factory=dict)
    _modules: dict[Path, ast.Module] = field(default_factory=dict)

    @cached_property
    def files(self) -> list[Path]:
        names = self._known_to_git() if (self.root / ".git").exists() else None
        if names is not None:
            return sorted(path for name in names if (path := self.root / name).is_file())
        return sorted(self._walk(self.root))

    def _known_to_git(self) -> list[str] | None:
        """None where git is missing or refuses (a checkout owned by somebody else)."""
        command = ["git", "-C", str(self.root), "ls-files", "-co", "--exclude-standard", "-z"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return [name for name in done.stdout.split("\0") if name]

    def _walk(self, folder: Path) -> Iterator[Path]:
        for path in folder.iterdir():
            if path.is_file():
                yield path
            elif path.name == ".ci" or not (path.name in _SKIP or path.name.startswith(".")):
                yield from self._walk(path)

    def under(self, *folders: str, suffix: str = "") -> Iterator[Path]:
        """Files below any of the folders (paths from the root) whose name ends so."""
        for path in self.files:
            name = self.name(path)
            if name.endswith(suffix) and name.startswith(tuple(f"{folder}/" for folder in folders)):
                yield path

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def text(self, path: Path) -> str:
        if path not in self._texts:
            try:
                self._texts[path] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                self._texts[path] = ""  # an image or the like: no rule reads it
        return self._texts[path]

    def module(self, path: Path) -> ast.Module:
        if path not in self._modules:
            try:
                self._modules[path] = ast.parse(self.text(path), self.name(path))
            except SyntaxError as error:
                self.unreadable.append(self.finding(path, error.lineno or 1, f"not Python 3.11: {error.msg}"))
                self._modules[path] = ast.Module([], [])
        return self._modules[path]

    def finding(self, path: Path, line: int, text: str) -> Finding:
        return Finding(self.name(path), line, text)

    @property
    def rooms(self) -> list[str]:
        """The rooms of the house: packages and modules directly below src/handbill."""
        house = self.root / "src" / "handbill"
        packages = {path.parent.name for path in house.glob("*/__init__.py")}
        return sorted(packages | {path.stem for path in house.glob("*.py") if not path.name.startswith("_")})


Rule = Callable[[Tree], Iterator[Finding]]
