"""The exact settings that would record what a question lacks; one sentence each, used by every refusal.

Sources: vLLM 0.32 `--profiler-config` and environment, SGLang 0.5 `/start_profile`, checked 2026-11.
"""

from __future__ import annotations

from stepscope.messages import Message

DETAILED = Message(
    "record sums per step: vLLM 0.26 or newer --profiler-config '{{\"detailed_trace_annotation\": true, ...}}'; "
    "SGLang with its roofline annotations on"
)
QUEUE = Message(
    "record the queue beside the profile: vLLM --enable-logging-iteration-details and the metrics "
    "vllm:num_requests_waiting, vllm:num_requests_running; SGLang --enable-metrics (sglang:num_queue_reqs)"
)
ROWS = Message(
    "record each step's rows: a step marker with query_len, kv_len and prefix hit per request (docs/capture.md)"
)
EXPERTS = Message(
    "record tokens per expert: vLLM router.set_capture_fn through a plugin, SGLang --expert-distribution-recorder-mode "
    "per_pass (docs/capture.md)"
)
COUNTERS = Message(
    "record hardware counters in a run of its own: NVIDIA `ncu --csv --page raw`; Ascend "
    "torch_npu.profiler with aic_metrics=PipeUtilization, profiler_level=Level1"
)
ALL_RANKS = Message("profile all ranks in the same window and pass their directory")
MODEL = Message("name the model and the device (explain --model, --hardware): a trace alone never holds the savings")
LAUNCHES = Message("record CPU and device activities together, so that graph launches are seen")
SHAPES = Message(
    "record input shapes, in a run without graphs: vLLM --enforce-eager and --profiler-config "
    "'{{\"torch_profiler_record_shapes\": true, ...}}'; SGLang --disable-cuda-graph and /start_profile with "
    "record_shapes=true"
)
