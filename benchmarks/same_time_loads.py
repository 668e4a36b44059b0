"""The runs of same_time.py: a tiny model, one run to calibrate on, and held-out runs that differ from it.

Requests are dicts, as same_time_engine.py takes them; the same seed gives the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from stepscope.simulate.request import Request, Segment

# Qwen3's shape at a size at which a step of one CPU thread takes 7 to 150 ms
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENGINE: dict[str, Any] = {
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
    "max_model_len": 2048,
    "block_size": 32,
    "num_gpu_blocks_override": 2000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run. `prompt`, `answer`: median lengths; `shared`: tokens of the prefix that `hit` of the requests have."""

    name: str
    chunk: int  # most tokens of a step
    count: int
    rate_per_s: float
    prompt: int
    answer: int
    shared: int = 0
    hit: float = 0.0
    num_prefixes: int = 1
    burst: float = 1.0  # arrivals' coefficient of variation
    spread: float = 0.6  # sigma of the log-normal lengths
    seed: int = 0


CALIBRATION = Load(
    name="calibration",
    chunk=512,
    count=240,
    rate_per_s=5.0,
    prompt=220,
    answer=32,
    shared=96,
    hit=0.3,
    spread=0.9,
    seed=1,
)
HELD_OUT = (
    Load(name="short prompts, long answers", chunk=512, count=50, rate_per_s=3.5, prompt=60, answer=120, seed=2),
    Load(name="long prompts", chunk=512, count=50, rate_per_s=3.0, prompt=800, answer=24, spread=0.4, seed=3),
    Load(name="chunks of 256, high load", chunk=256, count=70, rate_per_s=9.0, prompt=260, answer=24, seed=4),
    Load(
        name="chunks of 128, long prompts",
        chunk=128,
        count=50,
        rate_per_s=2.5,
        prompt=700,
        answer=30,
        spread=0.4,
        seed=5,
    ),
    Load(
        name="one prefix, 3/4 hit it",
        chunk=256,
        count=60,
        rate_per_s=6.0,
        prompt=700,
        answer=30,
        shared=512,
        hit=0.75,
        spread=0.3,
        seed=6,
    ),
    Load(
        name="four prefixes, bursts",
        chunk=128,
        count=60,
        rate_per_s=5.0,
        prompt=420,
        answer=40,
        shared=256,
        hit=0.6,
        num_prefixes=4,
        burst=1.8,
        spread=0.4,
        seed=7,
    ),
    Load(name="light load", chunk=512, count=40, rate_per_s=1.5, prompt=300, answer=40, seed=8),
)


def requests_of(load: Load) -> list[dict[str, Any]]:
    """With arrival times, lengths, and the seeds of their texts."""
    rng = Random(load.seed)
    shape = 1 / load.burst**2
    now, found = 0.0, []
    for index in range(load.count):
        now += rng.gammavariate(shape, 1 / (shape * load.rate_per_s))
        has_prefix = rng.random() < load.hit
        shared = load.shared if has_prefix else 0
        least = shared + 8
        found.append(
            {
                "request_id": f"r{index}",
                "arrival_s": now,
                "prompt_len": int(min(max(rng.lognormvariate(0, load.spread) * load.prompt, least), 1700)),
                "output_len": int(min(max(rng.lognormvariate(0, load.spread) * load.answer, 2), 300)),
                "shared_len": shared,
                "shared_seed": 1000 * load.seed + rng.randrange(load.num_prefixes),
                "seed": 1000 * load.seed + 100 + index,
            }
        )
    return found


def simulated(requests: list[dict[str, Any]]) -> list[Request]:
    """The same for the simulator, which needs to know which texts are equal and not what they say."""
    return [
        Request(
            request_id=r["request_id"],
            arrival_s=r["arrival_s"],
            prompt_len=r["prompt_len"],
            output_len=r["output_len"],
            text=(
                Segment(source=r["shared_seed"], length=r["shared_len"]),
                Segment(source=r["seed"], length=r["prompt_len"] + r["output_len"] - r["shared_len"]),
            ),
        )
        for r in requests
    ]
