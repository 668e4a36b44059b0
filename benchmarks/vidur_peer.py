"""Runs Vidur once, in Vidur's own Python and from its checkout's folder: figures as JSON on stdout, arrays in a file.

The workload of `vidur.py`: Llama-2-7b on an A100, Sarathi scheduler, Poisson arrivals, Azure's conversation lengths.
The event loop alone is timed (CPU seconds of this process); plots and the chrome trace are off. With --tables the file
also holds what Vidur's predictor gives for a step, in seconds: by tokens, by decode rows and 64-token bin of their mean
length, by bins of prefill context and root of the summed squares of chunk lengths.

    python -P vidur_peer.py OUT.npz --requests N --mlp CSV --attention CSV --work DIR [--tables]
"""

from __future__ import annotations

import argparse
import atexit
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

CAP, CHUNK, LONGEST, RATE_PER_S, BIN = 128, 512, 4096, 3.0, 64
FOREST = {"num_estimators": [40], "max_depth": [16], "min_samples_split": [2]}  # its default grid takes hours to train
PER_TOKEN = (
    *("attn_rope", "attn_kv_cache_save", "attn_pre_proj", "attn_post_proj"),
    *("mlp_up_proj", "mlp_down_proj", "mlp_act", "input_layernorm", "post_attention_layernorm", "add"),
)


def make_simulator(asked: argparse.Namespace) -> Any:
    """Vidur, ready to run; its requests are made, its forests trained or read from the cache."""
    from vidur import config as c
    from vidur.simulator import Simulator

    lengths = c.TraceRequestLengthGeneratorConfig(
        max_tokens=LONGEST, trace_file="data/processed_traces/splitwise_conv.csv"
    )
    return Simulator(
        c.SimulationConfig(
            cluster_config=c.ClusterConfig(
                replica_config=c.ReplicaConfig(model_name="meta-llama/Llama-2-7b-hf", device="a100"),
                replica_scheduler_config=c.SarathiSchedulerConfig(batch_size_cap=CAP, chunk_size=CHUNK),
            ),
            request_generator_config=c.SyntheticRequestGeneratorConfig(
                length_generator_config=lengths,
                interval_generator_config=c.PoissonRequestIntervalGeneratorConfig(qps=RATE_PER_S),
                num_requests=asked.requests,
            ),
            execution_time_predictor_config=c.RandomForrestExecutionTimePredictorConfig(
                compute_input_file=asked.mlp,
                attention_input_file=asked.attention,
                prediction_max_prefill_chunk_size=CHUNK,
                prediction_max_batch_size=CAP,
                prediction_max_tokens_per_request=LONGEST,
                k_fold_cv_splits=2,
                num_training_job_threads=1,
                **FOREST,
            ),
            metrics_config=c.MetricsConfig(
                store_plots=False,
                enable_chrome_trace=False,
                output_dir=f"{asked.work}/output",
                cache_dir=f"{asked.work}/cache",
            ),
        )
    )


def find_tables(predictor: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What the predictor holds, as seconds of a whole step."""
    told, layers = predictor._predictions, predictor._num_layers_per_pipeline_stage
    if (
        predictor._attention_decode_batching_overhead_fraction
        or predictor._attention_prefill_batching_overhead_fraction
    ):
        raise SystemExit("a model with grouped queries has an overhead per batch that these tables do not hold")
    bins = LONGEST // BIN
    by_tokens = [0.0]
    for tokens in range(1, CHUNK + CAP + 1):
        rounded = (tokens + 7) // 8 * 8
        parts = [told[name][tokens if name == "attn_kv_cache_save" else rounded,] for name in PER_TOKEN]
        by_tokens.append(sum(parts) * layers * 1e-3)
    decode = [[told["attn_decode"][rows, each * BIN] for each in range(bins + 1)] for rows in range(1, CAP + 1)]
    prefill = [[told["attn_prefill"][each * BIN, x * x] for x in range(1, CHUNK + 1)] for each in range(bins + 1)]
    return {
        "by_tokens_s": np.array(by_tokens),
        "decode_s": np.array(decode) * layers * 1e-3,
        "prefill_s": np.array(prefill) * layers * 1e-3,
    }


def main() -> None:
    """Run, and write what is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--mlp", required=True)
    parser.add_argument("--attention", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    Path(asked.work).mkdir(parents=True, exist_ok=True)
    simulator = make_simulator(asked)
    atexit.unregister(simulator._write_output)
    requests = [event[1]._request for event in sorted(simulator._event_queue)]
    lengths = [request.size for request in requests]
    begin = time.process_time()
    simulator.run()
    cpu_s = time.process_time() - begin
    scheduler = simulator.scheduler.get_replica_scheduler(0)
    arrays = {
        "arrival_s": np.array([request.arrived_at for request in requests]),
        "prompt_len": np.array([size[0] for size in lengths]),
        "output_len": np.array([size[1] for size in lengths]),
        "first_s": np.array([request.prefill_completed_at for request in requests]),
        "last_s": np.array([request.completed_at for request in requests]),
    }
    if asked.tables:
        arrays |= find_tables(scheduler._replica_stage_schedulers[0]._execution_time_predictor)
    np.savez(asked.out, **arrays)
    from vidur.entities import Batch

    found = {
        "cpu_s": cpu_s,
        "num_steps": Batch._id + 1,
        "num_blocks": scheduler._config.num_blocks,
        "num_restarts": sum(request.num_restarts for request in requests),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(found))


main()
