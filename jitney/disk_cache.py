"""Compiled objects on disk, by content key: safe against two processes and damaged files.

A file is the SHA-256 of its content, then the content; it is written under another name and moved
into place, so a reader sees all of it or nothing. A file that does not match its own digest is as
good as absent, and is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from pathlib import Path

from jitney.config import Config, current
from jitney.events import log

_DIGEST = 32


class DiskCache:
    """Bytes by key under ``folder``. A disk that cannot be written only costs the caching."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.folder / name[:2] / name[2:]

    def get(self, key: str) -> bytes | None:
        """What was put under ``key``, or None."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            log.emit("cache", hit=False)
            return None
        content = data[_DIGEST:]
        if hashlib.sha256(content).digest() != data[:_DIGEST]:
            log.emit("cache", hit=False, damaged=str(path))
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        log.emit("cache", hit=True)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keeps ``content`` under ``key``; of two writers, either one's file stays."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(name, path)
        except OSError as reason:
            log.emit("cache", unwritable=str(reason))
            message = f"jitney: nothing is kept in {self.folder} ({reason.strerror})"
            warnings.warn(f"{message}; JITNEY_CACHE_DIR names another folder", stacklevel=2)


def cache_directory(settings: Config | None = None) -> Path:
    """The folder of everything kept on disk: ``cache_dir``, default ``~/.cache/jitney``."""
    named = (settings or current()).cache_dir
    if named:
        return Path(named)
    try:
        return Path.home() / ".cache" / "jitney"
    except RuntimeError:  # a user id without an account, as in containers
        return Path(tempfile.gettempdir()) / f"jitney-{os.getuid()}"


def open_cache(settings: Config) -> DiskCache | None:
    """The cache a configuration names; None when it is off."""
    return DiskCache(cache_directory(settings)) if settings.cache else None
