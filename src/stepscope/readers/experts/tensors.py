"""A file written by torch.save -> plain dicts, lists, numbers and numpy arrays. Nothing in it is executed.

The zip holds a pickle and one entry per storage. The pickle is first checked opcode by opcode, then read by an
unpickler that knows six names: an ordered dict, torch's tensor rebuilders, a size, and storage classes. Any other name,
or a call of anything else, refuses the file. A tensor must lie inside its storage.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from stepscope.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
_MAX_BYTES = 4 * 2**30
_MAX_PICKLE_BYTES = 256 * 2**20

_DTYPES: dict[str, str] = {
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bfloat16",
}
# what builds no object of a foreign class: all else is refused before a byte is run
_REFUSED_OPCODES = {"INST", "OBJ", "EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER", "READONLY_BUFFER", "NEWOBJ_EX"}


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    values: Array


def load_tensors(path: Path) -> Any:
    """Read the file.

    Raises:
        BadInput: it is no such file, is broken, too large, or names something that is not needed for tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Loader(path, archive).load()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise BadInput(f"{path}: this is no file of torch.save ({error}). Pass the recorder's own .pt file.") from error


class _Loader:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        names = [info.filename for info in archive.infolist() if info.filename.endswith("/data.pkl")]
        if len(names) != 1:
            self.refuse("it holds no data.pkl")
        self.folder = names[0].removesuffix("data.pkl")
        if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
            self.refuse(f"it unpacks to more than {_MAX_BYTES >> 30} GiB")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            self.refuse("its entries are compressed, which torch.save never does")
        self.is_little = self.entry("byteorder", default=b"little").strip() == b"little"
        self.storages: dict[str, _Storage] = {}

    def refuse(self, why: str) -> NoReturn:
        raise BadInput(f"{self.path}: not read, since {why}. Pass the recorder's own .pt file.")

    def entry(self, name: str, default: bytes | None = None) -> bytes:
        try:
            return self.archive.read(self.folder + name)
        except KeyError:
            if default is None:
                self.refuse(f"the entry {name!r} is missing")
            return default
        except (RuntimeError, ValueError) as error:  # encrypted, or a broken header
            self.refuse(str(error))

    def load(self) -> Any:
        data = self.entry("data.pkl")
        self.check_opcodes(data)
        try:
            return _Unpickler(self, data).load()
        except BadInput:
            raise
        except Exception as error:  # noqa: BLE001  # a broken pickle can raise anything; nothing foreign has run
            self.refuse(f"its pickle is broken ({type(error).__name__}: {error})")

    def check_opcodes(self, data: bytes) -> None:
        if len(data) > _MAX_PICKLE_BYTES:
            self.refuse("its pickle is too large")
        try:
            for opcode, argument, _ in pickletools.genops(data):
                if opcode.name in _REFUSED_OPCODES:
                    self.refuse(f"its pickle has the opcode {opcode.name}")
                if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
                    self.refuse("its pickle numbers more values than it holds")
        except BadInput:
            raise
        except Exception as error:  # noqa: BLE001  # genops raises ValueError and others for broken bytes
            self.refuse(f"its pickle is broken ({error})")

    def storage(self, identity: object) -> _Storage:
        if not isinstance(identity, tuple) or len(identity) != 5 or identity[0] != "storage":
            self.refuse("it refers to something that is no storage")
        _, dtype, key, _, count = identity
        if not isinstance(dtype, _StorageClass) or not isinstance(key, str) or not key.isalnum():
            self.refuse("a storage has no known type or name")
        if key not in self.storages:
            self.storages[key] = _Storage(dtype.dtype, self.values(dtype.dtype, self.entry(f"data/{key}"), count))
        return self.storages[key]

    def values(self, dtype: str, raw: bytes, count: object) -> Array:
        width = np.dtype("<u2" if dtype == "bfloat16" else dtype).newbyteorder("<" if self.is_little else ">")
        if not isinstance(count, int) or count < 0 or count * width.itemsize > len(raw):
            self.refuse(f"a storage of {count} values has {len(raw)} bytes")
        values: Array = np.frombuffer(raw, width, count=count)
        if dtype == "bfloat16":
            return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values

    def tensor(self, storage: object, offset: object, size: object, stride: object, *_rest: object) -> Array:
        shape, steps = _counts(size), _counts(stride)
        if not isinstance(storage, _Storage) or not isinstance(offset, int) or offset < 0:
            self.refuse("a tensor has no storage")
        if shape is None or steps is None or len(shape) != len(steps) or len(shape) > 8:
            self.refuse("a tensor has no usable shape")
        total = int(np.prod(shape, dtype=object)) if shape else 1
        last = offset + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
        if total and (last >= len(storage.values) or total > len(storage.values)):
            self.refuse("a tensor reaches beyond its storage")
        if not total:
            return np.zeros(shape, storage.values.dtype)
        width = storage.values.dtype.itemsize
        view = np.lib.stride_tricks.as_strided(storage.values[offset:], shape, [s * width for s in steps])
        return view.astype(view.dtype.newbyteorder("="))


def _counts(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, tuple) or not all(isinstance(n, int) and 0 <= n < 2**40 for n in value):
        return None
    return value


@dataclass(frozen=True, slots=True)
class _StorageClass:
    dtype: str


class _Unpickler(pickle.Unpickler):
    """Knows tensors and containers; every other name refuses the file."""

    def __init__(self, loader: _Loader, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.loader = loader

    def persistent_load(self, pid: object) -> _Storage:
        return self.loader.storage(pid)

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _DTYPES:
            return _StorageClass(_DTYPES[name])
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3")):
            return self.loader.tensor
        if (module, name) == ("collections", "OrderedDict"):
            return _empty_dict
        if (module, name) == ("torch", "Size"):
            return tuple
        return self.loader.refuse(f"it names {module}.{name}, which counts do not need")


def _empty_dict(*pairs: object) -> dict[Any, Any]:
    del pairs
    return {}
