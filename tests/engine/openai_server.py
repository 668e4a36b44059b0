"""A real OpenAI server of a tiny model, and clients that load it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.engine.drive_engine import DENSE, PROFILER, tokens
from tests.engine.plugin_environment import PYTHON, engine_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_S = 240


class Server:
    """One running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        self.log = log

    def post(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        data = json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=120) as answer:
            got: bytes = answer.read()
        return got

    def complete(self, number: int, max_tokens: int = 30) -> int:
        """One request; the number of tokens that came."""
        shared = tokens(1, 256 if number % 3 else 0)
        prompt = shared + tokens(number + 2, 20 + 37 * (number % 20))
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        return int(json.loads(self.post("/v1/completions", body))["usage"]["completion_tokens"])

    def load(self, num_requests: int, concurrency: int = 16, max_tokens: int = 30) -> list[int]:
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda i: self.complete(i, max_tokens), range(num_requests)))

    def writers(self) -> list[int]:
        """Process ids of this server's log writers."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(part.endswith(b"log_writer.py") for part in command) and str(self.log).encode() in command:
                found.append(int(entry.name))
        return found


def write_model(folder: Path) -> Path:
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    words = {f"w{i}": i for i in range(DENSE["vocab_size"])}  # type: ignore[call-overload]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (model / "config.json").write_text(json.dumps(DENSE))
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    (model / "tokenizer_config.json").write_text(json.dumps(names))
    return model


@contextmanager
def serving(folder: Path, log: Path, **environment: str) -> Iterator[Server]:
    """Start a server, give it when it answers, end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = write_model(folder)
    options = (
        f"--model {model} --served-model-name tiny --load-format dummy --dtype bfloat16 --enforce-eager --seed 0 "
        f"--max-num-batched-tokens 512 --max-num-seqs 12 --max-model-len 2048 --block-size 128 --port {port}"
    ).split()
    profiler = json.dumps({**PROFILER, "torch_profiler_dir": str(folder / "traces")})
    with (folder / "server.txt").open("wb") as output:
        process = subprocess.Popen(
            [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *options, "--profiler-config", profiler],
            env=engine_environment(folder, log) | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        server = Server(process, port, folder, log)
        try:
            _wait(server)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    end = time.monotonic() + 10
    while server.writers() and time.monotonic() < end:  # they write what is left
        time.sleep(0.1)


def _wait(server: Server) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError((server.folder / "server.txt").read_text()[-5000:])
