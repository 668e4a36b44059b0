"""A new folder in the place of an old one, in one step where the system can: a kill leaves the old or the new.

Linux and macOS exchange two names atomically. Where that is not to be had (another system, an old or remote file
system), it takes two renames, and a kill between them leaves the old folder beside its place under a name that says so.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # macOS sys/stdio.h


def make_aside(target: Path) -> Path:
    """A fresh folder beside the target, in its name this process; those of processes that were killed are removed."""
    host = re.sub(r"\W", "-", socket.gethostname())
    _remove_abandoned(target, host)
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.{host}.{os.getpid()}.", dir=target.parent))


def _remove_abandoned(target: Path, host: str) -> None:
    own = re.compile(rf"\.{re.escape(f'{target.name}.{host}')}\.(\d+)\.[^.]+")
    for path in target.parent.iterdir():
        match = own.fullmatch(path.name)
        if match and not _is_running(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def put_in_place(aside: Path, target: Path) -> None:
    """Move the new folder to the target; an old one that is there is removed."""
    if not target.exists():
        aside.rename(target)
    elif _exchange(aside, target):
        shutil.rmtree(aside, ignore_errors=True)
    else:
        _rename_twice(aside, target)


def _exchange(a: Path, b: Path) -> bool:
    """Whether the two names could be exchanged."""
    first, second = os.fsencode(a), os.fsencode(b)
    with suppress(AttributeError, OSError):  # not this system, or no such function in its library
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            return bool(library.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE) == 0)
        if sys.platform == "darwin":
            return bool(library.renamex_np(first, second, _RENAME_SWAP) == 0)
    return False


def _rename_twice(aside: Path, target: Path) -> None:
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    try:
        target.rename(old / target.name)
        aside.rename(target)
    except BaseException:
        if not target.exists():
            (old / target.name).rename(target)
        with suppress(OSError):
            old.rmdir()  # empty, unless the old run could not come back: then it stays there
        raise
    shutil.rmtree(old, ignore_errors=True)
