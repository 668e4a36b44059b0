"""Databases: the same kernels as the text export, parts told from kernels, times as text in old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import stepscope
from stepscope.answers.pipes import bounds
from stepscope.store.schema import DEVICE_SCOPE, FRAME, KERNEL, MEMCPY, OP, RUNTIME
from tests.readers.ascend.profiles import database

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [
    *["KERNEL_AICORE", "KERNEL_MIX_AIC", "MatMulV2", "AI_CORE", "MIX_AIC", "FusedInferAttentionScore", "launch"],
    *["hcom_allReduce__868_0_1", "hcom_allReduce_", "Notify Wait", "MEMCPY_ASYNC", "aten::mm", "f.py(1): g"],
    *["Launch_Ffts", "aic_total_cycles", "aic_mac_ratio", "aic_mte2_ratio", "aiv_total_cycles", "aiv_vec_ratio"],
    *["aiv_mte2_ratio", "aiv_mac_ratio", "PROFILING_ENABLE"],
]
ID = {name: i for i, name in enumerate(NAMES)}
THREAD = (77 << 32) + 78


def make(path: Path) -> Path:
    def pmu(task: int, **values: float) -> list[tuple[int, int, float]]:
        return [(task, ID[name], value) for name, value in values.items()]

    cube = {"aic_total_cycles": 9, "aic_mac_ratio": 0.13755, "aic_mte2_ratio": 0.9023}
    vector = {"aiv_total_cycles": 0, "aiv_vec_ratio": 0, "aiv_mte2_ratio": 0, "aiv_mac_ratio": 0}
    return database(
        path,
        {
            "STRING_IDS": [(i, name) for name, i in ID.items()],
            "ENUM_API_TYPE": [(20000, "acl"), (10000, "node"), (5500, "hccl")],
            "TASK": [
                (500, 520, 3, None, 0, ID["PROFILING_ENABLE"], 0),
                (1_000, 6_000, 3, 11, 1, ID["KERNEL_AICORE"], 2),
                (7_000, 9_000, 3, 12, 2, ID["KERNEL_MIX_AIC"], 2),
                (7_000, 7_010, 3, 12, 3, ID["KERNEL_AICORE"], 2),  # starts the mixed kernel: no row of its own
                (9_500, 9_900, 3, 13, 4, ID["Notify Wait"], 4),  # inside the collective
                (9_400, 9_410, 3, 13, 5, ID["KERNEL_AICORE"], 4),
                (20_000, 20_500, 3, 14, 6, ID["MEMCPY_ASYNC"], 2),
                (21_000, 21_500, 3, 99, 7, ID["Notify Wait"], 2),  # waits outside any collective
            ],
            "COMPUTE_TASK_INFO": [
                (ID["MatMulV2"], 1, ID["AI_CORE"], ID["MatMulV2"]),
                (ID["FusedInferAttentionScore"], 2, ID["MIX_AIC"], ID["FusedInferAttentionScore"]),
            ],
            "COMMUNICATION_OP": [(ID["hcom_allReduce__868_0_1"], 9_400, 12_400, 13, 1, ID["hcom_allReduce_"])],
            "CANN_API": [
                (900, 950, 10000, THREAD, 11, ID["launch"]),
                (960, 970, 5500, THREAD, 15, ID["Launch_Ffts"]),
            ],
            "PYTORCH_API": [
                ("800", "980", THREAD, None, ID["aten::mm"], 50001),
                ("700", "990", THREAD, None, ID["f.py(1): g"], 50003),
            ],
            "TASK_PMU_INFO": [*pmu(1, **cube), *pmu(1, **vector)],
            "RANK_DEVICE_MAP": [(5, 3)],
        },
    )


def test_every_event_is_what_it_is(tmp_path: Path) -> None:
    (store,) = stepscope.open_trace(make(tmp_path / "msprof_20260101.db")).stores
    store.check()
    e = store.events
    rows = sorted(zip((store.names[i] for i in e.name_id.tolist()), e.kind.tolist(), e.start_ns.tolist(), strict=True))
    assert rows == [
        ("FusedInferAttentionScore", KERNEL, 7_000),
        ("Hccl@Launch_Ffts", RUNTIME, 960),
        ("KERNEL_AICORE", DEVICE_SCOPE, 7_000),
        ("KERNEL_AICORE", DEVICE_SCOPE, 9_400),
        ("MEMCPY_ASYNC", MEMCPY, 20_000),
        ("MatMulV2", KERNEL, 1_000),
        ("Node@launch", RUNTIME, 900),
        ("Notify Wait", KERNEL, 21_000),
        ("Notify Wait", DEVICE_SCOPE, 9_500),
        ("PROFILING_ENABLE", DEVICE_SCOPE, 500),
        ("aten::mm", OP, 800),
        ("f.py(1): g", FRAME, 700),
        ("hcom_allReduce__868_0_1", KERNEL, 9_400),
    ]
    assert (store.rank, store.origin.rank_source) == (5, "RANK_DEVICE_MAP")
    assert {track.device for track in store.tracks if track.is_device} == {"3"}
    assert store.health == ()


def test_full_precision_and_structural_zeros_of_the_database(tmp_path: Path) -> None:
    (store,) = stepscope.open_trace(make(tmp_path / "msprof_20260101.db")).stores
    counters = store.counters
    assert counters is not None
    (cube, vector) = bounds(counters, 0)
    assert cube.memory_bound.value is not None
    assert f"{cube.memory_bound.value:.2f}" == "6.56"
    assert vector.memory_bound.missing == "core_not_run"
    assert [column.name for column in counters.columns if column.core == "AIV"] == [
        "mte2_ratio",
        "total_cycles",
        "vec_ratio",
    ]
    assert {bound.memory_bound.missing for bound in bounds(counters, 1)} == {"no_record"}
