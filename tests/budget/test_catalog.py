"""The catalog: every rule places its own example, misleading names are placed right, a broken file is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.budget.catalog import (
    DEVICE_CATEGORIES,
    DEVICE_KINDS,
    Catalog,
    Kind,
    Rule,
    base_name,
    frame_name,
    is_graph_launch,
    is_launch,
    load_catalog,
)
from stepscope.errors import CatalogError
from stepscope.steps.windows import BLOCKING_CALL

CATALOG = load_catalog()
KERNEL_RULES = [rule for rule in CATALOG.rules if "kernel" in rule.kinds]


def rule_name(rule: Rule) -> str:
    return rule.name


def family_of(name: str, kind: Kind = "kernel", catalog: Catalog = CATALOG) -> str | None:
    placement = catalog.place(name, kind)
    return placement.family if placement else None


# --- Laws of the shipped files


@pytest.mark.parametrize("rule", CATALOG.rules, ids=rule_name)
def test_a_rule_places_its_own_example(rule: Rule) -> None:
    for kind in rule.kinds:
        placement = CATALOG.place(rule.example, kind)
        assert placement is not None
        assert placement.rule == rule.name
        assert (placement.category, placement.family, placement.weak) == (rule.category, rule.family, rule.weak)


@pytest.mark.parametrize("rule", [rule for rule in KERNEL_RULES if rule.where == "base"], ids=rule_name)
def test_template_arguments_do_not_move_a_kernel(rule: Rule) -> None:
    arguments = "<(Fp8KVCacheDataType)1, 128, std::array<char*, 2ul> >(int const*, float) [clone .kd]"
    other = f"void {base_name(rule.example)}{arguments}"
    placement = CATALOG.place(other, "kernel")
    assert placement is not None
    assert placement.rule == rule.name


def test_rules_that_look_into_arguments_are_few_and_only_of_kernels() -> None:
    full = [rule for rule in CATALOG.rules if rule.where == "full"]
    assert all(rule.kinds == ("kernel",) for rule in full)
    assert len(full) <= 16


def test_device_work_is_placed_in_compute_kv_or_comm() -> None:
    for rule in CATALOG.rules:
        if DEVICE_KINDS.intersection(rule.kinds):
            assert rule.category in DEVICE_CATEGORIES, rule.name


def test_weak_is_said_of_the_host_side_only() -> None:
    for rule in CATALOG.rules:
        assert not (rule.weak and DEVICE_KINDS.intersection(rule.kinds)), rule.name


def test_every_family_is_used_and_explained() -> None:
    used = {rule.family for rule in CATALOG.rules}
    assert {family.name for family in CATALOG.families} == used
    assert all(family.meaning for family in CATALOG.families)


def test_every_rule_names_its_source() -> None:
    assert all(rule.source and rule.example for rule in CATALOG.rules)


@pytest.mark.parametrize("rule", KERNEL_RULES, ids=rule_name)
def test_a_base_name_is_its_own_base_name(rule: Rule) -> None:
    short = base_name(rule.example)
    assert base_name(short) == short
    assert " " not in short


# --- Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("void (anonymous namespace)::store_kvcache<2048l, 4>((anonymous namespace)::Params)", "store_kvcache"),
        (
            "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, 2>(int)",
            "at::native::indexSelectSmallIndex",
        ),
        ("std::enable_if<(((8)>(0)))&&vllm::ok<T>::exists, void>::type vllm::norm<T, 8>(T*)", "vllm::norm"),
        ("void f<decltype(g(1)->h)>(int)", "f"),
        ("unsigned int f<{lambda(int)->float#1}>(int)", "f"),
        ("void cub::Kernel<cub::Policy<int>::Policy600, int*>(int*) [clone .kd]", "cub::Kernel"),
        ("Cijk_Alik_Bljk_BBS_MT64x16x256.kd", "Cijk_Alik_Bljk_BBS_MT64x16x256"),
        ("void f<int, std::array<char", "f"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_", "aiter::add_rmsnorm_quant_kernel"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdEEEvT0_", "ck_tile::kentry"),
        ("_ZN12_GLOBAL__N_112store_kernelIiEEvT_", "store_kernel"),
        ("_Z12store_kernelIiEvT_", "store_kernel"),
        ("_ZNSt6vectorIiE4pushEv", "_ZNSt6vectorIiE4pushEv"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("", ""),
    ],
)
def test_base_name_keeps_the_qualified_name_alone(name: str, expected: str) -> None:
    assert base_name(name) == expected


def test_a_frame_is_named_by_file_and_function() -> None:
    early = "vllm/distributed/device_communicators/shm_broadcast.py(830): acquire_read"
    late = "vllm/distributed/device_communicators/shm_broadcast.py(880): acquire_read"
    assert (
        frame_name(early) == frame_name(late) == "vllm/distributed/device_communicators/shm_broadcast.py: acquire_read"
    )
    assert frame_name("<built-in method to of Tensor object at 0x7f0a>") == "<built-in method to of Tensor object>"
    assert frame_name("nn.Module: Qwen3DecoderLayer_2") == "nn.Module: Qwen3DecoderLayer_2"


@pytest.mark.parametrize(
    "name", ["kernel", "device_kernel", "_kernel", "void kernel(int*)", "fused_unheard_of_thing", ""]
)
def test_a_name_that_says_nothing_is_not_placed(name: str) -> None:
    assert CATALOG.place(name, "kernel") is None


# --- Names that substring classes get wrong


@pytest.mark.parametrize(
    ("name", "family"),
    [
        # a cache's type in the arguments is no cache write
        (
            "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0, 1, 128>(int)",
            "attention",
        ),
        # the library is flashinfer, the work is a norm
        (
            "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel_object_at__tensorptrbf16",
            "norm",
        ),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)", "norm"),
        # a product of experts
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "experts"),
        ("_finalize_matmul_scatter_bf16", "experts"),
        # formats in a product's name are no quantisation, and only a dynamic batch is one of experts
        (
            "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_rM_TN_transOut_biasM_bN_clmp_swiGlu_dynBatch_sm100f",
            "experts",
        ),
        ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_TN_transOut_sm100f", "gemm"),
        # combining on one rank is no communication
        ("_combined_routing_compute", "moe_routing"),
        ("void moe::dev::finalize::finalizeKernel<int>(int)", "experts"),
        ("void smxx::decode::flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, 512>(int)", "attention_mla"),
        ("void flash::flash_fwd_splitkv_combine_kernel<Traits, 4, 4, true>(int)", "attention"),
        # a compiler names a kernel after its neighbours
        ("triton_poi_fused_all_reduce_add_0", "compiled"),
        ("triton_red_fused_all_reduce_mean_pow_rsqrt_1", "norm"),
        ("triton_poi_fused_constant_pad_nd_moe_forward_0", "experts"),
        # arguments decide where the entry is shared
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<int> > >(int)", "attention"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int> > >(int)", "gemm"),
        ("_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90EEEEEvT_", "attention"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, (deep_gemm::GemmType)0>(float*)", "gemm"),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, (deep_gemm::GemmType)2>(float*)", "experts"),
        # top-k of three trades
        ("void vllm::moe::topkGatingSoftmax<4, 128>(float*)", "moe_routing"),
        ("void vllm::topKPerRowPrefill<512>(float const*)", "topk_selection"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)", "reduction"),
        ("_topk_topp_kernel", "sampling"),
        # a store that names the cache, and one that leads with rope
        ("_fused_qk_rope_reshape_and_cache_kernel", "cache_write"),
        ("void (anonymous namespace)::fused_rope_store_kernel<true, 128l>((anonymous namespace)::Params)", "rope"),
        ("_fwd_kernel_ep_scatter_1", "experts"),
        ("_fwd_kernel_stage2", "attention"),
    ],
)
def test_names_that_mislead(name: str, family: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)",
        "void vllm::cross_device_reduce_2stage<__half, 4>(int)",
        "void sglang::cross_device_reduce_1stage<__half, 4>(int)",
        "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(int)",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>(int)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>(int)",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true, true>(int)",
        "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<int, __half, 8, true>(int)",
        "void all_reduce_two_shot_kernel<__nv_bfloat16, 8, true>(int)",
    ],
)
def test_custom_collectives_are_communication(name: str) -> None:
    assert family_of(name) == "collective"


# --- The host's side


@pytest.mark.parametrize(
    ("name", "kind", "category", "family"),
    [
        ("vllm/distributed/device_communicators/shm_broadcast.py(830): acquire_read", "frame", "supply", "dequeue"),
        ("<built-in function sched_yield>", "frame", "supply", "dequeue"),
        (
            "site-packages/vllm/distributed/device_communicators/shm_broadcast.py(1): dequeue",
            "frame",
            "supply",
            "dequeue",
        ),
        ("vllm/v1/executor/multiproc_executor.py(9): worker_busy_loop", "frame", "envelope", "worker_loop"),
        ("vllm/v1/worker/worker_base.py(9): execute_model", "frame", "envelope", "execute_model"),
        ("vllm/v1/worker/gpu/model_runner.py(9): execute_model", "frame", "envelope", "execute_model"),
        ("vllm/v1/executor/multiproc_executor.py(9): execute_model", "frame", "envelope", "worker_loop"),
        ("sglang/srt/managers/scheduler.py(9): run_batch", "frame", "envelope", "execute_model"),
        ("vllm/model_executor/models/qwen3.py(9): forward", "frame", "envelope", "model_forward"),
        ("nn.Module: DeepseekV32ForCausalLM_0", "frame", "envelope", "model_forward"),
        ("nn.Module: GlmMoeDsaForCausalLM_0", "frame", "envelope", "model_forward"),
        ("vllm/v1/worker/gpu_worker.py(9): sample_tokens", "frame", "envelope", "sample"),
        ("vllm/v1/worker/gpu_model_runner.py(9): _build_attention_metadata", "frame", "host", "metadata"),
        ("vllm/v1/worker/gpu/model_runner.py(9): prepare_attn", "frame", "host", "metadata"),
        ("vllm/v1/worker/gpu_model_runner.py(9): _prepare_inputs", "frame", "host", "host_prepare"),
        ("vllm/v1/core/sched/scheduler.py(9): schedule", "frame", "engine", "schedule"),
        ("torch/cuda/streams.py(9): synchronize", "frame", "comm", "stream_sync"),
        ("gpu_model_runner: preprocess", "scope", "host", "host_prepare"),
        ("gpu_model_runner: forward", "scope", "envelope", "model_forward"),
        ("execute_66_context_1(sq64sk96sqsq4096sqsk6144)_generation_2(sq2sk9sqsq2sqsk9)", "scope", "envelope", "step"),
        ("step[EXTEND bs=15 toks=15360]", "scope", "envelope", "step"),
        ("gloo:all_reduce", "scope", "comm", "collective"),
        ("nccl:all_reduce", "scope", "envelope", "span"),
        ("entire_frame_compile_data: fn_name=_compile.compile_inner, compile_id=0/2", "scope", "host", "compile"),
        ("vllm::unified_kv_cache_update", "op", "kv", "cache_write"),
        ("_C::cpu_attention_with_kv_cache", "op", "compute", "attention"),
        ("_C::shm_recv_tensor_list", "op", "comm", "pp_recv"),
        ("_C::get_scheduler_metadata", "op", "host", "metadata"),
        ("aten::view", "op", "host", "dispatch"),
        ("cudaGraphLaunch", "runtime", "host", "graph_launch"),
        ("cudaMemcpyAsync", "runtime", "host", "copy_call"),
        ("Memcpy HtoD (Pinned -> Device)", "memcpy", "compute", "copy"),
        ("Memcpy PtoP (Device -> Device)", "memcpy", "comm", "peer_copy"),
        ("Memset (Device)", "memset", "compute", "copy"),
    ],
)
def test_the_host_side_is_read_as_the_engines_mean_it(name: str, kind: Kind, category: str, family: str) -> None:
    placement = CATALOG.place(name, kind)
    assert placement is not None
    assert (placement.category, placement.family) == (category, family)


@pytest.mark.parametrize(
    "name",
    [
        "torch/cuda/streams.py(9): wait_event",
        "sglang/srt/layers/communicator.py(9): prepare_attn",
        "json/decoder.py(9): decode",
    ],
)
def test_frames_that_say_little_are_left_to_what_they_hold(name: str) -> None:
    assert CATALOG.place(name, "frame") is None


@pytest.mark.parametrize("name", ["aten::bmm", "aten::_softmax", "aten::copy_", "aten::mul"])
def test_generic_operators_yield_to_what_encloses_them(name: str) -> None:
    placement = CATALOG.place(name, "op")
    assert placement is not None
    assert placement.weak


@pytest.mark.parametrize(
    "name", ["aten::view", "aten::empty", "vllm::unified_attention_with_output", "_C::shm_allreduce"]
)
def test_views_and_named_stages_do_not_yield(name: str) -> None:
    placement = CATALOG.place(name, "op")
    assert placement is not None
    assert not placement.weak


def test_runtime_calls_are_told_apart() -> None:
    launches = [
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cuLaunchKernelEx",
        "hipLaunchKernel",
        "hipModuleLaunchKernel",
    ]
    launches += ["hipExtModuleLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernel_v7000"]
    graphs = ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"]
    syncs = ["cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "hipDeviceSynchronize"]
    syncs += ["hipMemcpyWithStream", "cudaMemcpy", "cudaMemcpy_v3020", "cuStreamSynchronize", "cuMemcpyDtoH_v2"]
    others = ["cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaStreamWaitEvent", "cudaEventQuery", "cudaMalloc", "unheard"]
    assert all(is_launch(name) for name in launches + graphs)
    assert all(is_graph_launch(name) for name in graphs)
    assert not any(is_graph_launch(name) for name in launches)
    assert all(is_sync(name) for name in syncs)
    assert not any(is_launch(name) or is_sync(name) for name in others)
    assert not any(is_sync(name) for name in launches + graphs)
    # the windows' own pattern, which is below the catalog, knows the same calls
    assert all(BLOCKING_CALL.match(name) for name in syncs)
    assert not any(BLOCKING_CALL.match(name) for name in others + launches + graphs)


def is_sync(name: str) -> bool:
    place = CATALOG.place(name, "runtime")
    return place is not None and place.family == "stream_sync"


# --- A user's own files

OWN = """
[[family]]
name = "vision"
category = "compute"
meaning = "the vision tower"

[[rule]]
family = "vision"
on = ["kernel", "op"]
match = '^acme_|^nvjet_'
source = "Acme 1.0"
example = 'acme_patch_embed'
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_users_rules_win_over_ours(tmp_path: Path) -> None:
    catalog = load_catalog([write(tmp_path, OWN)])
    assert family_of("acme_patch_embed", "kernel", catalog) == "vision"
    assert family_of("nvjet_sm90_tst_64x64", "kernel", catalog) == "vision"
    assert family_of("nvjet_sm90_tst_64x64", "kernel") == "gemm"
    placement = catalog.place("acme_patch_embed", "op")
    assert placement is not None
    assert placement.rule == "own:1"
    assert len(catalog.rules) == len(CATALOG.rules) + 1


RULE = OWN[OWN.index("[[rule]]") :]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]\n", ["is not TOML"]),
        ("version = 1\n", ["unknown key 'version'", "[[family]] and [[rule]]"]),
        ("[rule]\nfamily = 'gemm'\n", ["'rule' is no list", "two brackets"]),
        ("rule = [1]\n", ["rule 1 is no table"]),
        (RULE, ["rule 1, field 'family'", "'vision' is not known", "attention_mla"]),
        (OWN.replace("source =", "origin ="), ["rule 1", "unknown field 'origin'", "Known: family, on, match"]),
        (OWN.replace('source = "Acme 1.0"', ""), ["rule 1", "field 'source' is missing"]),
        (OWN.replace('source = "Acme 1.0"', "source = 1"), ["rule 1, field 'source'", "1 is no str"]),
        (OWN.replace('["kernel", "op"]', '["kernels"]'), ["rule 1, field 'on'", "'kernels' is not known", "memset"]),
        (OWN.replace('["kernel", "op"]', "[]"), ["rule 1, field 'on'", "Known: kernel"]),
        (OWN.replace("'^acme_|", "'^(acme_|"), ["rule 1, field 'match'", "no regular expression"]),
        (OWN.replace("acme_patch_embed", "acne_patch_embed"), ["rule 1, field 'example'", "Correct one"]),
        (
            OWN.replace('"compute"', '"host"'),
            ["rule 1, field 'family'", "device work cannot be 'host'", "comm, compute, kv"],
        ),
        (OWN.replace('"compute"', '"cpu"'), ["family 1, field 'category'", "'cpu' is not known", "supply, compute"]),
        (OWN.replace('name = "vision"', 'name = "gemm"'), ["'gemm' is a family already"]),
    ],
)
def test_a_broken_file_is_explained(tmp_path: Path, text: str, said: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(CatalogError) as caught:
        load_catalog([path])
    message = str(caught.value)
    assert str(path) in message
    for fragment in said:
        assert fragment in message


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"own\.toml: cannot be read"):
        load_catalog([tmp_path / "own.toml"])
