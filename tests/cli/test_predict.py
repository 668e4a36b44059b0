"""The model wing's commands; the notes' tables come out of one command each, to every printed digit."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stepscope.cli import predict as commands
from stepscope.errors import BadInput
from tests.models.reference import MODELS, REFERENCE

app = typer.Typer()
for _command in (commands.predict, commands.gemm, commands.history, commands.models):
    app.command()(_command)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "-f", "json"))


def refused(*arguments: str) -> str:
    with pytest.raises(BadInput) as caught:
        run(*arguments)
    return str(caught.value)


# {m: flop per byte as the second note prints it}
DENSE: dict[str, dict[str, str]] = {
    "4096x1024": {
        "1": "0.9988",
        "2": "1.9951",
        "4": "3.9806",
        "8": "7.9226",
        "16": "15.6935",
        "32": "30.7970",
        "64": "59.3623",
        "128": "110.7027",
        "256": "195.0476",
        "512": "315.0769",
        "1024": "455.1111",
        "2048": "585.1429",
        "4096": "682.6667",
        "8192": "744.7273",
    },
    "4096x512": {
        "1": "0.9978",
        "8": "7.8618",
        "64": "56.1096",
        "128": "99.9024",
        "512": "240.9412",
        "2048": "372.3636",
        "8192": "431.1579",
    },
    "1024x32768": {
        "1": "0.9990",
        "8": "7.9361",
        "64": "60.1248",
        "128": "113.3841",
        "512": "337.8144",
        "2048": "668.7347",
        "8192": "885.6216",
    },
    "4096x4096": {
        "1": "0.9995",
        "1.5": "1.4989",
        "3": "2.9956",
        "6": "5.9825",
        "12": "11.9301",
        "24": "23.7220",
        "48": "46.9008",
        "96": "91.7015",
        "192": "175.5429",
    },
    "2048x4096": {
        "1": "0.9993",
        "1.5": "1.4984",
        "3": "2.9934",
        "6": "5.9737",
        "12": "11.8955",
        "24": "23.5854",
        "48": "46.3698",
        "96": "89.6934",
        "192": "168.3288",
    },
}


@pytest.mark.parametrize("shape", DENSE)
def test_intensity_tables_of_the_note(shape: str) -> None:
    """wq_a, wkv, wq_b by M; W13 and W2 by M_e."""
    expected = DENSE[shape]
    rows = run_json("gemm", shape, "--m", ",".join(expected))
    assert [f"{row['intensity']:.4f}" for row in rows] == list(expected.values())
    text = run("gemm", shape, "--m", ",".join(expected))
    assert all(value in text for value in expected.values())


def test_int8_weights_alone_double_the_intensity_of_small_m() -> None:
    rows = run_json("gemm", "4096x1024", "--m", "1,8,64,512,2048", "--weights", "int8")
    assert [f"{row['intensity']:.4f}" for row in rows] == ["1.9951", "15.6935", "110.7027", "455.1111", "682.6667"]


def test_gemm_counts_are_exact() -> None:
    first, mean = run_json("gemm", "4096x4096", "--m", "64,1.5", "--dtype", "bf16")
    assert first == {"m": 64, "flop": 2147483648, "bytes": 34603008, "intensity": 2147483648 / 34603008}
    assert (mean["m"], mean["flop"], mean["bytes"]) == (1.5, 50331648.0, 33579008.0)


def test_payload_tables_of_the_note() -> None:
    document = run_json("history", "deepseek-v4-flash-0731", "--context", "8k,32k,128k,1m", "--layout", "ascend-910c")
    index, c128 = [], []
    for part in document["contexts"]:
        branches = {branch["branch"]: branch for branch in part["branches"]}
        index.append((part["context"], branches["indexer"]["rows"], branches["indexer"]["layer_bytes"]))
        c128.append((branches["c128"]["rows"], part["attention_bytes"]["hca_c128"]))
        assert part["attention_bytes"]["csa_c4"] == 655_360
        assert part["attention_bytes"]["swa_hash"] == 131_072
    assert index == [
        (8192, 2048, 266_240),
        (32_768, 8192, 1_064_960),
        (131_072, 32_768, 4_259_840),
        (1_048_576, 262_144, 34_078_720),
    ]
    assert c128 == [(64, 196_608), (256, 393_216), (1024, 1_179_648), (8192, 8_519_680)]
    states = {(row["layer_type"], row["name"]): row["row_bytes"] for row in document["state_rows"]}
    assert (states["csa_c4", "c4"], states["hca_c128", "c128"]) == (8192, 4096)
    text = run("history", "deepseek-v4-flash-0731", "--context", "8k,1m", "--layout", "ascend-910c")
    for printed in ("0.2539", "32.5000", "(0.625 MiB)", "8.125 MiB", "state row 8,192 bytes", "state row 4,096 bytes"):
        assert printed in text


@pytest.mark.parametrize(
    ("options", "copies", "mean"), [(("--prefill", "2048"), 12_288, 48), (("--decode", "64@8191"), 384, 1.5)]
)
def test_assignments_of_the_note(options: tuple[str, ...], copies: int, mean: float) -> None:
    document = run_json("predict", "deepseek-v4-flash-0731", *options)
    assert (document["experts"]["copies"], document["experts"]["mean"]) == (copies, mean)
    w13 = next(op for op in document["operators"] if op["name"] == "experts_w13")
    assert (w13["m"], w13["n"], w13["k"]) == (copies, 4096, 4096)


@pytest.mark.parametrize("name", MODELS)
def test_totals_of_every_model(name: str) -> None:
    reference = REFERENCE[name]
    for case, options in (
        ("prefill_2048_ctx30720", ("--prefill", "2048", "--context", "30720")),
        ("decode_64_ctx8191", ("--decode", "64@8191")),
    ):
        document = run_json("predict", name, *options)
        assert document["totals"]["flop"] == reference["flop_total"][case]
        assert document["totals"]["flop"] == sum(op["count"] * op["flop"] for op in document["operators"])
        assert document["totals"]["bytes"] == sum(op["count"] * op["bytes"] for op in document["operators"])
        assert document["totals"]["params_active"] == reference["params_active"]
        assert document["totals"]["params_matrices"] == reference["params_matrices"]
        assert document["totals"]["params_total"] == reference["params_total"] or reference["params_total"] is None


def test_without_hardware_times_are_null() -> None:
    document = run_json("predict", "llama-3.1-8b", "--decode", "1@10")
    assert document["totals"]["lower_bound_s"] is None
    assert document["totals"]["serial_bound_s"] is None
    assert {(op["bound"], op["time_s"]) for op in document["operators"]} == {(None, None)}
    keys = ("layer_type", "count", "name", "role", "m", "n", "k", "flop", "bytes", "intensity", "bound", "time_s")
    assert set(keys) <= set(document["operators"][0])


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v4-flash", "glm-5.2", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("plan", [(), ("--tp", "4", "--ep", "4"), ("--dp", "8", "--ep", "8")])
def test_lower_bound_never_passes_the_serial_bound(name: str, plan: tuple[str, ...]) -> None:
    for shape in (("--prefill", "512"), ("--decode", "64@8191")):
        document = run_json("predict", name, *shape, "--hardware", "h200", "--cost", "bound", *plan)
        totals = document["totals"]
        assert 0 < totals["lower_bound_s"] <= totals["serial_bound_s"]
        assert all(op["bound"] in ("compute", "memory", "network") for op in document["operators"])
        assert sum(op["count"] * op["time_s"] for op in document["operators"]) == pytest.approx(totals["lower_bound_s"])


def test_rows_from_a_file_equal_the_options(tmp_path: Path) -> None:
    path = tmp_path / "shape.json"
    rows = [
        {"phase": "prefill", "query_len": 512, "context_len": 1024},
        {"phase": "decode", "context_len": 8192, "count": 3},
    ]
    path.write_text(json.dumps({"rows": rows}))
    from_file = run_json("predict", "llama-3.1-8b", "--batch", str(path))
    options = run_json("predict", "llama-3.1-8b", "--prefill", "512", "--context", "1k", "--decode", "3@8k")
    assert from_file == options
    path.write_text('{"rows": [{"phase": "prefill"}]}')
    assert "needs its query_len" in refused("predict", "llama-3.1-8b", "--batch", str(path))
    path.write_text('{"rows": [{"phase": "decode", "tokens": 4}]}')
    assert "unknown field `tokens`" in refused("predict", "llama-3.1-8b", "--batch", str(path))


def test_verification_multiplies_the_decode_rows() -> None:
    document = run_json("predict", "glm-5.2", "--decode", "4@1000", "--draft-tokens", "3", "--draft-passes", "3")
    assert document["shape"]["num_scheduled_tokens"] == 16
    assert document["shape"]["logits_rows"] == 16
    assert "mtp" in {op["layer_type"] for op in document["operators"]}


def test_a_measured_histogram_is_shown_as_measured(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([64] * 4 + [0] * 28))
    document = run_json("predict", "gpt-oss-20b", "--decode", "64@100", "--rows-per-expert", f"@{path}")
    experts = document["experts"]
    assert (experts["source"], experts["active_experts"], experts["max"], experts["median"]) == ("measured", 4, 64, 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("predict", "llama-3.1-8b"), "the step has no rows: pass --prefill 2048, --decode 64@8192 or --batch"),
        (("predict", "llama-3.1-8b", "--decode", "64"), "--decode 64: B@C was expected"),
        (("predict", "llama-3.1-8b", "--prefill", "two"), "'two' is no whole number"),
        (("predict", "llama-3.1-8b", "--prefill", "0"), "at least one token"),
        (("predict", "llama-3.1-8b", "--decode", "1@200k"), "the model's limit is 131072"),
        (("predict", "llama-3.1-8b", "--decode", "1@10", "--tp", "6"), "num_attention_heads 32 is not divisible"),
        (("predict", "llama-3.1-8b", "--decode", "1@10", "--weights", "fp3"), "unknown dtype 'fp3'"),
        (("predict", "llama-3.1-8b", "--decode", "1@10", "--kv", "fp3"), "unknown KV layout 'fp3'"),
        (("predict", "llama-3.1-8b", "--decode", "1@10", "--fusion", "x"), "unknown fusion 'x'"),
        (("predict", "llama-3.1-8b", "--decode", "1@10", "--mla", "x"), "--mla x"),
        (("predict", "no-such", "--decode", "1@10"), "neither a bundled model nor a config.json. Bundled: deepseek-r1"),
        (("gemm", "4096", "--m", "1"), "KxN was expected"),
        (("gemm", "4096x1024", "--m", "x"), "'x' is no whole number"),
        (("gemm", "4096x1024", "--m", "nan"), "positive number"),
        (("gemm", "4096x1024", "--m", "1", "--dtype", "fp3"), "unknown dtype 'fp3'"),
        (("history", "llama-3.1-8b", "--context", "1m"), "1 to 131072 was expected"),
        (("history", "llama-3.1-8b", "--context", "8k", "--layout", "ascend-910c"), "does not exist for GQA"),
        (("models", "-f", "parquet"), "not for this command"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in refused(*arguments)


def test_qwen3_beyond_its_native_context_says_that_it_needs_rope_scaling() -> None:
    document = run_json("predict", "qwen3-8b", "--decode", "1@131071")
    assert any("rope scaling" in note for note in document["notes"])


def test_models_lists_all_and_shows_one() -> None:
    table = run_json("models")
    assert [row["name"] for row in table] == sorted(MODELS)
    one = run_json("models", "deepseek-v4-flash-0731")
    assert one["kv_bytes_per_token"]["ascend-910c"] == 6218.5
    assert one["keys"]["num_experts"] == "n_routed_experts"
    assert one["layer_types"] == REFERENCE["deepseek-v4-flash-0731"]["layers"]
    assert "n_routed_experts" in run("models", "deepseek-v4-flash-0731")


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "gpt-oss-20b", "--decode", "2@100"),
        ("gemm", "64x64", "--m", "1,2"),
        ("history", "glm-5.2", "--context", "8k"),
        ("models",),
        ("models", "llama-3.1-8b"),
    ],
)
def test_every_command_writes_text_markdown_and_csv(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*arguments).strip()
    assert "|---" in run(*arguments, "-f", "md")
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "-f", "csv"))))
    assert rows
    path = tmp_path / "out.json"
    run(*arguments, "-f", "json", "-o", str(path))
    assert json.loads(path.read_text())
