"""Expert counts: .pt files are data and are never run; markers; physical counts add up to logical ones."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from stepscope.errors import BadInput, StepscopeError
from stepscope.readers.experts.reader import ExpertLog, parse_marker, read_experts, read_markers
from stepscope.readers.experts.tensors import load_tensors
from tests.readers.test_fuzz import mutate

Array = np.ndarray[Any, np.dtype[Any]]
_STORAGE = {"i8": "LongStorage", "i4": "IntStorage", "f4": "FloatStorage", "u1": "ByteStorage"}


class _Named:
    """Pickles as a global of that name, as torch's own classes do, without torch."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Tensor:
    def __init__(self, key: str, array: Array) -> None:
        self.key, self.array = key, array


def save(path: Path, content: Any, **zipped: Any) -> None:
    """Write what torch.save writes: a protocol 2 pickle whose tensors name storages by persistent ids."""
    tensors: list[_Tensor] = []

    class Pickler(pickle._Pickler):  # the Python one can be taught
        dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)
        write: Any
        save: Any

        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, _Tensor) and obj in tensors and getattr(self, "inside", False):
                kind = _STORAGE[obj.array.dtype.str[1:]]
                return ("storage", _Named("torch", kind), obj.key, "cpu", obj.array.size)
            return None

        def save_named(self, obj: _Named) -> None:
            self.write(b"c" + obj.module.encode() + b"\n" + obj.name.encode() + b"\n")

        def save_tensor(self, obj: _Tensor) -> None:
            self.save(_Named("torch._utils", "_rebuild_tensor_v2"))
            self.write(b"(")
            tensors.append(obj)
            self.inside = True
            self.save(obj)
            self.inside = False
            strides = tuple(s // obj.array.itemsize for s in obj.array.strides)
            for value in (0, tuple(obj.array.shape), strides, False):
                self.save(value)
            self.save(_Named("collections", "OrderedDict"))
            self.write(b")R")
            self.write(b"tR")

        dispatch[_Named] = save_named
        dispatch[_Tensor] = save_tensor

    out = io.BytesIO()
    Pickler(out, 2).dump(content)
    with zipfile.ZipFile(path, "w", **zipped) as archive:
        archive.writestr("archive/data.pkl", out.getvalue())
        archive.writestr("archive/byteorder", "little")
        for tensor in tensors:
            archive.writestr(f"archive/data/{tensor.key}", np.ascontiguousarray(tensor.array).tobytes())
        archive.writestr("archive/version", "3\n")


def tensor(key: str, values: Any, dtype: str = "<i8") -> _Tensor:
    return _Tensor(key, np.array(values, dtype))


def write_stat(path: Path) -> ExpertLog:
    save(path, {"rank": 0, "logical_count": tensor("0", [[[3, 1], [2, 2]], [[0, 4], [4, 0]]])})
    return read_experts(path)


def test_a_window_of_steps(tmp_path: Path) -> None:
    log = write_stat(tmp_path / "expert_distribution_recorder_1.pt")
    assert [s.counts.tolist() for s in log.steps] == [[[3, 1], [2, 2]], [[0, 4], [4, 0]]]
    assert {s.step for s in log.steps} == {None}
    # 2 tokens to 2 of the experts each: every layer of every step adds up to 4
    assert {int(layer.sum()) for s in log.steps for layer in s.counts} == {4}


def test_passes_by_forward_id_with_physical_experts(tmp_path: Path) -> None:
    path = tmp_path / "expert_distribution_recorder_1_0.pt"
    record = {"forward_pass_id": 18423, "rank": 0, "global_physical_count": tensor("0", [[3, 1, 2]])}
    owner = tensor("1", [[0, 1, 0]])
    save(path, {"records": [record, {"forward_pass_id": 1}], "last_physical_to_logical_map": owner})
    log = read_experts(tmp_path)
    assert (log.steps[0].step, log.steps[0].is_physical) == (18423, True)
    logical = log.logical(log.steps[0])
    assert logical is not None
    assert logical.tolist() == [[5, 1]]  # physical 0 and 2 are copies of logical 0
    assert {row.code: row.count for row in log.reading.health} == {"expert_record_unparsed": 1}


def test_physical_counts_without_a_map_are_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save(path, {"records": [{"forward_pass_id": 1, "rank": 0, "global_physical_count": tensor("0", [[3, 1]])}]})
    log = read_experts(path)
    assert log.logical(log.steps[0]) is None


def test_numbers_of_other_widths_and_views(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    turned = _Tensor("0", np.arange(6, dtype="<i4").reshape(2, 3).T)
    save(path, {"a": turned, "b": tensor("1", [1.5, 2.5], "<f4"), "c": tensor("2", [], "<i8"), "d": OrderedDict()})
    # the transposed view's storage is written in its own order
    content = load_tensors(path)
    assert content["a"].shape == (3, 2)
    assert content["b"].tolist() == [1.5, 2.5]
    assert content["c"].size == 0


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def put_pickle(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_in_a_file_is_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    path = put_pickle(tmp_path / "evil.pt", pickle.dumps({"records": [_Evil(mark)]}, protocol=protocol))
    with pytest.raises(BadInput, match="not read"):
        read_experts(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(ios\nsystem\n.",  # INST
        b"\x80\x02c__builtin__\ngetattr\n.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(tR.",  # no arguments
        b"\x80\x02ctorch.storage\n_load_from_bytes\n(C\x01atR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of two thousand million places
        b"\x80\x02\x82\x01.",  # an extension code
        b"",
        b"\x80",
        b"(" * 100_000,
    ],
)
def test_a_pickle_that_wants_more_than_tensors_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        load_tensors(put_pickle(tmp_path / "a.pt", data))


@pytest.mark.parametrize(
    ("size", "stride", "offset"), [((2, 9), (9, 1), 0), ((10**6, 10**6), (0, 0), 0), ((2,), (1,), 3), ((-1,), (1,), 0)]
)
def test_a_tensor_lies_inside_its_storage(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    storage = b"\x80\x02(X\x07\x00\x00\x00storagectorch\nLongStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    numbers = [b"\x8a\x08" + struct.pack("<q", n) for n in (offset, *size, *stride)]
    shape = b"(" + b"".join(numbers[1 : 1 + len(size)]) + b"t(" + b"".join(numbers[1 + len(size) :]) + b"t"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage[2:] + numbers[0] + shape + b"\x89NtR."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + call)
        archive.writestr("archive/data/0", bytes(32))
    with pytest.raises(BadInput, match="tensor"):
        load_tensors(path)


def test_compressed_entries_and_other_zips_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.pt", {"a": tensor("0", [1])}, compression=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    (tmp_path / "c.pt").write_bytes(pickle.dumps({"logical_count": 1}))
    save(tmp_path / "d.pt", {"weights": tensor("0", [1])})
    save(tmp_path / "e.pt", [1])
    for name in "abcde":
        with pytest.raises(BadInput):
            read_experts(tmp_path / f"{name}.pt")


def test_markers_of_a_trace() -> None:
    found = parse_marker("vllm_experts v=1 s=21 l=0:126.127.108,3:1.2.358")
    assert found is not None
    assert (found.step, found.layers) == (21, (0, 3))
    assert found.counts.sum(axis=1).tolist() == [361, 361]
    assert parse_marker("vllm_experts v=1 s=21 l=0:1.2,1:3") is None
    assert parse_marker("vllm_experts v=9 s=21 l=0:1") is None
    assert [
        s.step for s in read_markers(["a", "vllm_experts v=1 s=2 l=0:1", "vllm_experts v=1 s=1 l=0:1"], "t").steps
    ] == [
        1,
        2,
    ]


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    write_stat(tmp_path / "seed.pt")
    data = (tmp_path / "seed.pt").read_bytes()
    random_ = random.Random(seed)
    for _ in range(80):
        (tmp_path / "a.pt").write_bytes(mutate(data, random_))
        try:
            log = read_experts(tmp_path / "a.pt")
        except StepscopeError:
            continue
        assert all(step.counts.ndim == 2 for step in log.steps)
