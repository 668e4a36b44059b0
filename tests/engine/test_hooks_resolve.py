"""The methods that the plugin patches are in each engine version's source, with the arguments that it relies on.

STEPSCOPE_ENGINE_SOURCES is a folder of wheels, as `tools/fetch_engine_sources.sh` fills it. Nothing of them is run.
"""

from __future__ import annotations

import ast
import os
import zipfile
from pathlib import Path

import pytest

from stepscope.record.vllm_plugin import HOOKS, is_known

FOLDER = os.environ.get("STEPSCOPE_ENGINE_SOURCES")
ARCHIVES = sorted(Path(FOLDER).glob("*.whl")) if FOLDER else []

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ARCHIVES, reason="STEPSCOPE_ENGINE_SOURCES holds no wheel"),
]


def read_module(archive: Path, module: str) -> str | None:
    """The source of a module in a wheel; None where it has no such module."""
    wanted = module.replace(".", "/") + ".py"
    with zipfile.ZipFile(archive) as wheel:
        return wheel.read(wanted).decode() if wanted in wheel.namelist() else None


def arguments_of(source: str, class_name: str) -> dict[str, list[str]]:
    """Each method's arguments."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            return {f.name: [a.arg for a in (*f.args.args, *f.args.kwonlyargs)] for f in functions}
    return {}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_hooks_are_where_the_plugin_looks(archive: Path) -> None:
    engine = "vllm_ascend" if "ascend" in archive.name else "vllm"
    found = 0
    for module, classes in HOOKS.items():
        if module.partition(".")[0] != engine:
            continue
        source = read_module(archive, module)
        assert source is not None, module
        for class_name, methods in classes.items():
            known = arguments_of(source, class_name)
            for method, arguments in methods.items():
                assert known.get(method, [])[: len(arguments)] == list(arguments), (module, class_name, method)
                found += 1
    assert found
    assert is_known(archive.name.split("-")[1])


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_the_hooked_method_is_called_around_the_model(archive: Path) -> None:
    if "ascend" in archive.name:
        source = read_module(archive, "vllm_ascend.worker.worker") or ""
        body = source[source.index("def execute_model") :]
        assert body.index("self.profiler.step()") < body.index("self.model_runner.execute_model(scheduler_output")
        return
    source = read_module(archive, "vllm.v1.worker.gpu_worker") or ""
    assert "with self.annotate_profile(scheduler_output):" in source
    inherits = read_module(archive, "vllm.v1.worker.cpu_worker") or ""
    assert "class CPUWorker(Worker):" in inherits
    assert "def annotate_profile" not in inherits
    router = read_module(archive, "vllm.model_executor.layers.fused_moe.router.base_router") or ""
    assert arguments_of(router, "BaseRouter")["set_capture_fn"] == ["self", "capture_fn"]
