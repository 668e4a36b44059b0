from __future__ import annotations

import json
import re
import shlex
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from stepscope.cli.capture_recipe import capture
from stepscope.errors import BadInput
from stepscope.record.live import NoCapture, call, count_steps, read_version, take
from stepscope.record.recipes import ENGINES, EVIDENCE, find_recipe, load_recipes, parse_version, render_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Fake:
    """A server that counts a step per look at its metrics and writes a trace when it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = 0
        self.calls: list[tuple[str, Any]] = []
        self.has_profiler = True
        self.is_idle = False


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[tuple[Fake, str]]:
    state = Fake(tmp_path / "trace")

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            if self.path == "/version":
                self.answer(200, '{"version": "0.32.0"}')
            elif self.path == "/metrics":
                state.steps += 0 if state.is_idle else 10
                self.answer(200, f'vllm:iteration_tokens_total_count{{engine="0"}} {state.steps}.0\n')
            else:
                self.answer(404, "")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.calls.append((self.path, body))
            if not state.has_profiler:
                self.answer(404, '{"detail": "Not Found"}')
                return
            if self.path == "/stop_profile":
                state.folder.mkdir(exist_ok=True)
                (state.folder / "rank0.1.pt.trace.json.gz").write_bytes(b"")
            self.answer(200, "")

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_recipe_is_a_shell_script_with_valid_json(engine: str) -> None:
    recipes = load_recipes(engine, folder="out folder", steps=7)
    assert {recipe.evidence for recipe in recipes} == set(EVIDENCE)
    for recipe in recipes:
        text = render_recipe(recipe, "http://localhost:1")
        words = shlex.split(text, comments=True)
        documents = [json.loads(word) for word in words if word.startswith("{")]
        assert "{folder}" not in text
        assert any("7" in json.dumps(document) for document in documents)
        assert text.isascii()


@pytest.mark.parametrize(
    ("engine", "version", "since"),
    [
        ("vllm", "0.32.0+cpu", "0.32"),
        ("vllm", "0.40", "0.32"),
        ("vllm", "0.31.2", "0.26"),
        ("vllm", "0.16.0", "0.16"),
        ("sglang", "0.5.23", "0.5.21"),
        ("sglang", "0.5.15.post1", "0.5.15"),
    ],
)
def test_the_newest_recipe_that_is_not_newer_is_taken(engine: str, version: str, since: str) -> None:
    for evidence in EVIDENCE:
        recipe = find_recipe(engine, version, evidence)
        assert recipe is not None
        assert recipe.since == since


def test_too_old_is_said() -> None:
    assert find_recipe("sglang", "0.4.6", "full") is None
    with pytest.raises(BadInput, match=re.escape("0.5.15")):
        run_plain("sglang", "--engine-version", "0.4.6")


def test_versions_compare_by_number() -> None:
    assert parse_version("0.9") < parse_version("0.16.0rc1") < parse_version("0.16.1")


def run_plain(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(capture)
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_command_prints_flags_environment_and_calls() -> None:
    text = run_plain("vllm", "--engine-version", "0.32.0", "--steps", "12", "--folder", "here")
    assert "export STEPSCOPE_STEP_LOG=here/steps" in text
    assert '"max_iterations": 12' in text
    assert "curl -X POST http://localhost:8000/stop_profile" in text
    low = run_plain("vllm", "--engine-version", "0.32.0", "--evidence", "low")
    assert "STEPSCOPE_EXPERTS" not in low
    assert '"torch_profiler_with_stack": false' in low


def test_a_running_server_is_captured(fake: tuple[Fake, str], tmp_path: Path) -> None:
    state, url = fake
    assert read_version("vllm", url) == "0.32.0"
    text = run_plain("vllm", "--from", url, "--steps", "30", "--folder", str(tmp_path))
    assert text.strip().endswith("rank0.1.pt.trace.json.gz")
    assert [path for path, _ in state.calls] == ["/start_profile", "/stop_profile"]
    assert state.calls[0][1] == {"max_iterations": 30}


def test_a_server_without_load_is_stopped_again(fake: tuple[Fake, str], tmp_path: Path) -> None:
    state, url = fake
    state.is_idle = True
    recipe = find_recipe("vllm", "0.32", "low", folder=str(tmp_path / "elsewhere"))
    assert recipe is not None
    with pytest.raises(NoCapture, match="load"):
        take(recipe, url, 30, timeout_s=0.6)
    assert state.calls[-1][0] == "/stop_profile"


def test_a_server_without_a_profiler_is_said(fake: tuple[Fake, str]) -> None:
    state, url = fake
    state.has_profiler = False
    with pytest.raises(BadInput, match="without a profiler"):
        run_plain("vllm", "--from", url)


def test_no_server_is_said() -> None:
    with pytest.raises(NoCapture, match="no answer"):
        call("http://127.0.0.1:9", "/version", post=False)
    with pytest.raises(NoCapture, match="no address"):
        call("localhost:8000", "/version", post=False)
    assert count_steps("vllm", "http://127.0.0.1:9") is None


@pytest.mark.parametrize("recorder", ["ascend", "nsys", "rocm"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_other_recorders_have_a_recipe_for_each_engine(recorder: str, engine: str) -> None:
    app = typer.Typer()
    app.command()(capture)
    result = CliRunner().invoke(app, [recorder, "--engine", engine])
    assert result.exit_code == 0
    assert f"{recorder}-{engine}" in result.output
    assert "start the server" in result.output
