"""A server that answers as OpenAI's interface does, in this process."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from stepscope.errors import BadInput
from stepscope.sweep.plan import Plan, make_plan
from stepscope.sweep.report import sweep_document
from stepscope.sweep.run import run_sweep
from stepscope.sweep.server import ServerDriver, Streamed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Answers(BaseHTTPRequestHandler):
    """Streams as many tokens as it is asked for."""

    protocol_version = "HTTP/1.0"
    asked: list[dict[str, Any]]
    cached: int | None = 0
    is_ill = False

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        content = {"/v1/models": {"data": [{"id": "tiny"}]}, "/version": {"version": "0.32.0"}}.get(self.path)
        self.send_response(200 if content else 404)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(asked)
        self.send_response(500 if self.is_ill else 200)
        self.end_headers()
        usage = {"completion_tokens": asked["max_tokens"], "prompt_tokens_details": {"cached_tokens": self.cached}}
        events = [{"choices": [{"text": "x"}]}] * asked["max_tokens"] + [{"choices": [], "usage": usage}]
        for event in events:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")


@contextmanager
def serving(**rest: Any) -> Iterator[tuple[str, type[Answers]]]:
    handler = type("Handler", (Answers,), {"asked": [], **rest})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def plan(url: str) -> Plan:
    return make_plan("small", engine="server", model="tiny", url=url)


def test_a_server_s_tokens_are_timed_and_its_steps_are_not_known(tmp_path: Path) -> None:
    with serving() as (url, handler):
        made = plan(url)
        results = run_sweep(made, tmp_path)
    assert [result["status"] for result in results] == ["ok"] * len(made.cells)
    for result in results:
        figures = result["figures"]
        assert figures["step_s"] == {"value": None, "grade": None, "reason": "a server's client sees tokens, not steps"}
        is_alone = result["cell"]["batch"] == 1  # two at once may not meet: this server takes no time at all
        assert not is_alone or figures["tokens_per_s"]["value"] > 0
        is_timed = figures["tpot_s"]["value"] is not None
        assert is_timed == (result["cell"]["kind"] == "decode") or not is_alone
        assert is_alone or is_timed or "did not decode at the same time" in figures["tpot_s"]["reason"]
    lengths = [len(asked["prompt"]) for asked in handler.asked if asked["max_tokens"] > 1]
    assert lengths == [cell.context_len for cell in made.cells if cell.kind == "decode" for _ in range(cell.batch)]
    texts = [tuple(asked["prompt"]) for asked in handler.asked]
    assert len(set(texts)) == len(texts)  # a prefix cache finds nothing
    answers = sweep_document(made, results)["crossovers"]
    assert answers[0]["answer"] == "not_measured"
    assert "sees tokens, not steps" in answers[0]["reason"]


def test_cache_hits_make_a_cell_invalid(tmp_path: Path) -> None:
    with serving(cached=16) as (url, _):
        results = run_sweep(plan(url), tmp_path)
    assert {result["status"] for result in results} == {"invalid"}
    assert "came from the prefix cache" in results[0]["reasons"][0]


def test_a_server_that_does_not_say_what_it_found_is_noted(tmp_path: Path) -> None:
    with serving(cached=None) as (url, _):
        results = run_sweep(plan(url), tmp_path)
    assert "does not say how many prompt tokens it found" in results[0]["notes"][0]


def test_an_ill_server_fails_its_cells_and_a_missing_one_the_sweep(tmp_path: Path) -> None:
    with serving(is_ill=True) as (url, _):
        results = run_sweep(plan(url), tmp_path)
    assert {result["status"] for result in results} == {"failed"}
    assert "a completion failed (HTTP Error 500" in results[0]["reasons"][0]
    with pytest.raises(BadInput, match="Is the server running there"):
        ServerDriver(plan(url))
    with pytest.raises(BadInput, match="http:// or https://"):
        ServerDriver(plan("file:///etc"))


def test_tpot_is_per_token_between_first_and_last() -> None:
    several = Streamed(sent_s=0.0, chunk_s=(1.0, 2.0, 3.0), num_outputs=5, cached_tokens=0)
    assert several.tpot_s == pytest.approx(0.5)  # five tokens in three chunks
    assert Streamed(sent_s=0.0, chunk_s=(1.0,), num_outputs=1, cached_tokens=0).tpot_s is None
