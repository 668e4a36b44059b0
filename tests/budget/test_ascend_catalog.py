"""Ascend names in the catalog: type before API, fused communication apart, nothing taken from other vendors."""

from __future__ import annotations

import pytest

from stepscope.budget.catalog import Kind, load_catalog

CATALOG = load_catalog()


def account(name: str, kind: Kind = "kernel") -> tuple[str, str] | None:
    placement = CATALOG.place(name, kind)
    return (placement.category, placement.family) if placement else None


@pytest.mark.parametrize(
    ("name", "category", "family"),
    [
        # HCCL, and what is fused with it
        ("hcom_allReduce__868_0_1", "comm", "collective"),
        ("hcom_allGather__328_3", "comm", "collective"),
        ("hcom_reduceScatter__328_1", "comm", "collective"),
        ("hcom_alltoallv__586_0_1", "comm", "collective"),
        ("hcom_batchSendRecv__586_0_1", "comm", "collective"),
        ("allgatherAicpuKernel", "comm", "collective"),
        ("reduce_scatterAicpuKernel", "comm", "collective"),
        ("hcom_send__586_0_1", "comm", "pp_send"),
        ("hcom_receive__586_0_1", "comm", "pp_recv"),
        ("aclnnMoeDistributeDispatchV2_MoeDistributeDispatchV2_MoeDistributeDispatchV2", "comm", "dispatch_combine"),
        ("aclnnMoeDistributeCombineV3_MoeDistributeCombineV3_MoeDistributeCombineV3", "comm", "dispatch_combine"),
        ("MoeDistributeCombineAddRmsNormV2", "comm", "dispatch_combine"),
        ("CamMoeDispatchNormal", "comm", "dispatch_combine"),
        ("MoeLowLatencyDispatchV2", "comm", "dispatch_combine"),
        ("NotifyDispatch", "comm", "dispatch_combine"),
        ("DispatchFFNCombine", "comm", "fused_comm"),
        ("DispatchFFNCombineW4A8", "comm", "fused_comm"),
        ("DispatchGmmCombineDecode", "comm", "fused_comm"),
        ("FusedDeepMoe", "comm", "fused_comm"),
        ("aclnnMatmulAllReduceV2_MatmulAllReduce_MatmulAllReduce", "comm", "fused_comm"),
        ("MatmulAllReduceAddRmsNorm", "comm", "fused_comm"),
        ("AllGatherMatmulV2", "comm", "fused_comm"),
        ("MatmulReduceScatterV2", "comm", "fused_comm"),
        ("EVENT_WAIT", "comm", "device_wait"),
        ("Notify Wait", "comm", "device_wait"),
        ("NOTIFY_WAIT_SQE", "comm", "device_wait"),
        # the KV path
        ("ReshapeAndCacheNdKernel", "kv", "cache_write"),
        ("reshape_and_cache_200000000", "kv", "cache_write"),
        ("KvRmsNormRopeCacheV2", "kv", "cache_write"),
        ("mla_preprocess_0_mix_aic", "kv", "cache_write"),
        ("MlaPrologV3WeightNz", "kv", "cache_write"),
        ("PagedCacheLoadNdKernel", "kv", "gather_upconvert"),
        ("GatherPaKvCache", "kv", "gather_upconvert"),
        ("TransposeKvCacheByBlock", "kv", "kv_copy"),
        ("LightningIndexer", "kv", "indexer"),
        ("QuantLightningIndexerV2", "kv", "indexer"),
        ("VllmQuantLightningIndexerMetadata", "kv", "indexer"),
        ("IndexerCompressEpilogV2", "kv", "indexer"),
        ("Compressor", "kv", "compressor"),
        ("KvCompressEpilog", "kv", "compressor"),
        ("NsaCompressWithCache", "kv", "compressor"),
        # attention
        ("SparseAttnSharedkv", "compute", "attention_sparse"),
        ("KvQuantSparseFlashAttention", "compute", "attention_sparse"),
        ("SparseFlashMla", "compute", "attention_sparse"),
        ("RINGMLAPrefillBF16Kernel", "compute", "attention_mla"),
        ("PagedMultiLatentAttentionMaskNdKernel", "compute", "attention_mla"),
        (
            "aclnnFusedInferAttentionScoreV3_FusedInferAttentionScore_FusedInferAttentionScore",
            "compute",
            "attention",
        ),
        ("UnpadFlashAttentionBF16NdKernel", "compute", "attention"),
        ("PagedAttentionNdKernel", "compute", "attention"),
        # the rest of a layer
        ("aclnnMatmulWeightNz_MatMulCommon_MatMulV2", "compute", "gemm"),
        ("QuantBatchMatmulV3", "compute", "gemm"),
        ("batch_matmul_transpose_0", "compute", "gemm"),
        ("aclnnGroupedMatmulV5_GroupedMatmul_GroupedMatmul", "compute", "experts"),
        ("GroupedMatmulSwigluQuantV2", "compute", "experts"),
        ("MoeInitRoutingV3", "compute", "experts"),
        ("MoeGatingTopK", "compute", "moe_routing"),
        ("AddRmsNormBias", "compute", "norm"),
        ("split_qkv_rmsnorm_rope_kernel", "compute", "norm"),
        ("InterleaveRope", "compute", "rope"),
        ("_triton_rope_siso", "compute", "rope"),
        ("DequantSwigluQuant", "compute", "activation"),
        ("DynamicQuantV2", "compute", "quantisation"),
        ("HcPost", "compute", "hyper_connections"),
        ("ApplyTopKTopPCustom", "compute", "sampling"),
        # the type stands last and decides, the API in front does not
        ("aclnnMm_MatMulCommon_MemSet", "compute", "copy"),
        ("aclnnAdd_CastAiCore_Cast", "compute", "copy"),
        ("layer3_op7/AddRmsNorm", "compute", "norm"),
        ("trans_TransData_0", "compute", "copy"),
    ],
)
def test_kernels_are_placed_by_their_type(name: str, category: str, family: str) -> None:
    assert account(name) == (category, family)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("MEMCPY_ASYNC", "memcpy", ("compute", "copy")),
        ("MEMCPY_ASYNC host to device", "memcpy", ("compute", "copy")),
        ("Node@launch", "runtime", ("host", "launch")),
        ("Hccl@Launch_Ffts", "runtime", ("host", "runtime_call")),
        ("aclmdlRIExecuteAsync", "runtime", ("host", "graph_launch")),
        ("aclrtSynchronizeStreamWithTimeout", "runtime", ("comm", "stream_sync")),
        ("Runtime@StreamSynchronize", "runtime", ("comm", "stream_sync")),
        ("aclrtMemcpyAsync", "runtime", ("host", "copy_call")),
        ("Enqueue", "runtime", ("host", "runtime_call")),
        ("aclnnInplaceCopy", "runtime", ("host", "runtime_call")),
        ("prepare input", "scope", ("host", "metadata")),
    ],
)
def test_copies_and_calls(name: str, kind: Kind, expected: tuple[str, str]) -> None:
    assert account(name, kind) == expected


@pytest.mark.parametrize("name", ["MyOwnOperator", "UnheardOf_7", "aclnnUnheardOf_UnheardOf_UnheardOf"])
def test_an_unknown_kernel_stays_unknown(name: str) -> None:
    assert account(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void at::native::index_elementwise_kernel<128, 4>(int)",
        "triton_poi_fused_add_0",
        "void vllm::rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
    ],
)
def test_names_of_other_vendors_are_left_to_their_rules(name: str) -> None:
    placement = CATALOG.place(name, "kernel")
    assert placement is not None
    assert not placement.rule.startswith("15-ascend")
