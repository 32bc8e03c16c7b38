"""Compiled objects on disk, by content key: safe against two processes and damaged files.

A file is the SHA-256 of its content, then the content; it is written under another name and moved
into place, so a reader sees all of it or nothing. A file that does not match its own digest is as
good as absent, and is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

from jitney.config import Config, current
from jitney.errors import UserError
from jitney.events import log

_DIGEST = 32
_MAGIC = b"jitney cache artifacts 1\n"
_LENGTHS = struct.Struct("<QQ")
_used: dict[tuple[Path, str], None] = {}  # what this process found or kept, in that order


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
        _used[self.folder, key] = None
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keeps ``content`` under ``key``; of two writers, either one's file stays."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, hashlib.sha256(content).digest() + content)
            _used[self.folder, key] = None
        except OSError as reason:
            log.emit("cache", unwritable=str(reason))
            message = f"jitney: nothing is kept in {self.folder} ({reason.strerror})"
            warnings.warn(f"{message}; JITNEY_CACHE_DIR names another folder", stacklevel=2)


def _write(path: Path, data: bytes) -> None:
    """Puts a file in place whole, or (OSError: a full disk) leaves nothing behind."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


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


@dataclass(frozen=True)
class CacheInfo:
    """How much `save_cache_artifacts` or `load_cache_artifacts` handled; ``size`` in bytes."""

    entries: int
    size: int


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """What this process has compiled or loaded, as one text of bytes for another machine; None if
    that is nothing. Entries name what they were made for: where something else runs, they wait."""
    parts = []
    for folder, key in tuple(_used):
        content = DiskCache(folder).get(key)
        if content is not None:
            name = key.encode()
            parts += [_LENGTHS.pack(len(name), len(content)), name, content]
    if not parts:
        return None
    data = b"".join(parts)
    return _MAGIC + hashlib.sha256(data).digest() + data, CacheInfo(len(parts) // 3, len(data))


def load_cache_artifacts(artifacts: bytes) -> CacheInfo | None:
    """Puts what `save_cache_artifacts` gave into this machine's cache; None where caching is off.

    Load only what you trust: as with torch's, entries are pickles. Raises UserError for others.
    """
    if not isinstance(artifacts, bytes | bytearray | memoryview):
        got = type(artifacts).__name__
        raise UserError(f"load_cache_artifacts takes what save_cache_artifacts gave, not a {got}")
    start = len(_MAGIC) + _DIGEST
    data = bytes(artifacts[start:])
    if bytes(artifacts[:start]) != _MAGIC + hashlib.sha256(data).digest():
        raise UserError("these bytes are damaged, or not from save_cache_artifacts of this version")
    cache = open_cache(current())
    if cache is None:
        return None
    at = entries = 0
    while at < len(data):
        name, content = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        cache.put(data[at : at + name].decode(), data[at + name : at + name + content])
        at += name + content
        entries += 1
    return CacheInfo(entries, len(data))
