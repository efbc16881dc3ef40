"""The files that a session speaks of: found beside it, read, and held against what they were."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from npulab.captures.capture import Capture
from npulab.captures.folders import DESCRIPTION
from npulab.captures.store import case_folders, load
from npulab.captures.sweep import Sweep, is_sweep, load_sweep
from npulab.notebook.sessions.contents import Contents
from npulab.notebook.sessions.evidence import read_with
from npulab.notebook.sessions.file import inside, sum_of, unknown
from npulab.registers.formats import read_map
from npulab.registers.map import RegisterMap

if TYPE_CHECKING:
    from npulab.analysis.draft import Draft


class Places(Contents):
    """A session's document and the folder that its paths start from."""

    path: Path | None
    _draft: Draft | None = None  # the one that the session follows

    @property
    def folder(self) -> Path:
        """Where its paths start."""
        return self.path.parent if self.path else Path()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the captures and sweeps."""
        return tuple(self._document["captures"])

    @property
    def problems(self) -> list[str]:
        """What is missing or not as it was when it was attached, and names that this version does not know."""
        d = self._document
        stated = [(path, one["sha256"]) for path, one in sorted(d["captures"].items())]
        stated += [(one["path"], one["sha256"]) for one in (d.get("map"), *d["figures"].values()) if one]
        told = [text for path, known in stated if (text := self._differs(path, known))]
        told += [f"{path} is missing" for path in sorted(d["journals"]) if not inside(self.folder, path).is_file()]
        if names := unknown(d):
            told.append(f"holds what this version does not know and keeps as it is: {', '.join(names)}")
        return told

    def _differs(self, path: str, known: str) -> str:
        try:
            now = sum_of(inside(self.folder, path))
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        return "" if now == known else f"{path} has changed: its sha256 is {now}, it was {known}"

    def attach(self, path: str | os.PathLike[str]) -> Any:
        """Take a case folder, a dump, a sweep or a folder of captures into the session, as it is now.

        Gives the ``Capture``, ``Sweep`` or tuple of captures.  A relative path is one from the session's folder, or
        where there is none from here.  Raises ValueError for a path outside the session's folder, and as ``load``.
        """
        where = self._inside(path)
        folders = [where] if not where.is_dir() or (where / DESCRIPTION).exists() else case_folders(where)
        if not folders:
            raise ValueError(f"{where}: got a folder without {DESCRIPTION}, allowed is a capture; npulab import makes "
                             "captures of dumps")
        found = {self._relative(one): (self._loaded(one), sum_of(one)) for one in folders}
        self._change(lambda d: d["captures"].update(
            {name: {**d["captures"].get(name, {}), "sha256": known} for name, (_, known) in found.items()}))
        loaded = tuple(one for one, _ in found.values())
        return loaded[0] if folders == [where] else loaded

    def load(self, path: str) -> Any:
        """The capture or sweep of a path of the session; raises LookupError with those there are."""
        if path not in self._document["captures"]:
            raise LookupError(f"capture: got {path!r:.80}, the session has "
                              f"{', '.join(self._document['captures']) or 'none'}")
        return self._loaded(inside(self.folder, path))

    def decoded(self, path: str) -> Capture:
        """The capture of a path read with the session's map, where that is of one of its blocks; raises as ``load``."""
        return read_with(self.load(path), None if self.map is None else self.registers)

    @property
    def registers(self) -> RegisterMap:
        """The register map as it is now, with the edits that were not saved; raises LookupError where there is
        none."""
        if self.map is None or self.map.steps:
            return cast(RegisterMap, self.draft.map)
        path = inside(self.folder, self.map.path)
        if path.suffix == ".csv":
            return RegisterMap.read(path, features=self.map.features)
        return read_map(path).map(self.map.features)

    @property
    def draft(self) -> Any:
        """The draft of the session's map, with the steps that are not saved; the session keeps what is made on it.

        Raises LookupError where the session has no map, and where the steps do not fit the file as it is now.
        """
        from npulab.notebook.sessions.views import draft_of

        if self._draft is None or not self._stands(self._draft):
            self._follow(draft_of(self))
        return self._draft

    def _stands(self, draft: Draft) -> bool:
        """Whether a draft is what the session says of its map."""
        try:
            return {**self._document.get("map", {}), **self._kept(draft)} == self._document.get("map")
        except (ValueError, OSError):  # its file is another's by now
            return False

    def _kept(self, draft: Draft) -> dict[str, Any]:
        """What the document says of a draft; raises ValueError where its file is not that of one of its steps."""
        return self._version(draft.path, draft.unsaved, draft.map.features)

    def _version(self, path: Any, steps: Iterable[Any], features: Iterable[str]) -> dict[str, Any]:
        """What the document says of a map."""
        where = self._inside(path)
        return {"path": self._relative(where), "sha256": sum_of(where), "steps": list(steps),
                "features": sorted(features)}

    def _keep(self, draft: Draft) -> None:
        """Put a draft as it is now into the document."""
        value = self._kept(draft)
        self._change(lambda d: d.update(map={**d.get("map", {}), **value}))

    def _follow(self, draft: Draft | None) -> None:
        """Keep what is made on a draft from now on, and nothing more of another."""
        if self._draft is not None:
            self._draft.unobserve(self._keep)
        self._draft = draft
        if draft is not None:
            draft.observe(self._keep)

    def _all(self) -> Iterator[tuple[str, Any]]:
        """The captures and sweeps that can be read, by path."""
        for path in self._document["captures"]:
            with suppress(ValueError, LookupError, OSError):
                yield path, self.load(path)

    def _path_of(self, name: str, case: str) -> str:
        """The path of a capture by target and case; raises LookupError where there is none."""
        found = [path for path, one in self._all()
                 if isinstance(one, Capture) and (one.target, one.name) == (name, case)]
        if not found:
            raise LookupError(f"capture: got {name}/{case}, the session has {', '.join(self.paths) or 'none'}")
        return found[0]

    def _named(self, capture: Any, by_name: bool = False) -> str:
        """The path of a capture or sweep of the session; one that is given as a path and not attached yet is."""
        if not capture:
            return ""
        known = self._document["captures"]
        if isinstance(capture, Capture | Sweep):
            found = {path: one for path, one in self._all() if type(one) is type(capture)}
            same = [path for path, one in found.items() if _content(one) == _content(capture)]
            if not same and by_name:
                same = [path for path, one in found.items() if (one.target, one.name) == (capture.target, capture.name)]
            if not same:
                raise LookupError(f"capture: got {capture.name} as it is now, the session has "
                                  f"{', '.join(known) or 'none'}; attach takes one in by its path")
            return min(same, key=lambda path: (found[path].name != capture.name, path))
        if str(capture) in known:
            return str(capture)
        path = self._relative(self._inside(capture))
        if path not in known:
            self.attach(capture)
        if path not in self._document["captures"]:
            raise ValueError(f"{capture}: got a folder of captures, allowed is one of them")
        return path

    def _or_none(self, capture: Capture) -> str:
        try:
            return self._named(capture)
        except LookupError:
            return ""

    def _inside(self, path: str | os.PathLike[str]) -> Path:
        """A file or folder in the session's folder, named from there or from here."""
        if not isinstance(path, str | os.PathLike):
            raise ValueError(f"path: got {type(path).__name__}, allowed is the path of a file or folder")
        beside = self.folder / path
        where = beside if beside.exists() or Path(path).is_absolute() else Path(path)
        if not where.exists():
            raise FileNotFoundError(f"{beside}: there is no such file or folder")
        inside(self.folder, self._relative(where))
        return where

    def _relative(self, where: Path) -> str:
        folder = Path(os.path.abspath(self.folder))  # noqa: PTH100 - without following links
        full = Path(os.path.abspath(where))  # noqa: PTH100
        if not full.is_relative_to(folder):
            folder, full = folder.resolve(), full.resolve()
        if not full.is_relative_to(folder) or full == folder:
            raise ValueError(f"{where}: lies outside the session's folder {folder}, allowed is a path inside it")
        return full.relative_to(folder).as_posix()

    def _loaded(self, where: Path) -> Any:
        if where.exists() and not where.is_dir() and not where.is_file():
            raise ValueError(f"{where}: is no file or folder, allowed is a capture, a dump or a sweep")
        return load_sweep(where) if is_sweep(where) else load(where)


def _content(one: Capture | Sweep) -> tuple[Any, ...]:
    """What makes two captures or sweeps the same, whatever they are called."""
    if isinstance(one, Sweep):
        return one.target, one.words.shape, one.words.tobytes(), one.parameters.to_numpy().tobytes()
    return one.target, one.chip, one.jobs, dict(one.buffers)
