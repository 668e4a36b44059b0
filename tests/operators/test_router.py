from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import BadInput
from stepscope.operators.router import Router, summarise, unique_experts


@settings(max_examples=40, deadline=None)
@given(
    experts=st.integers(2, 64),
    share=st.floats(0.02, 1),
    tokens=st.integers(0, 200),
    skew=st.floats(0, 2),
    seed=st.integers(0, 9),
)
def test_every_copy_reaches_one_expert(experts: int, share: float, tokens: int, skew: float, seed: int) -> None:
    top_k = max(1, int(share * experts))
    router = Router(skew=skew, seed=seed)
    inclusion = router.inclusion(experts, top_k)
    assert inclusion.sum() == pytest.approx(top_k)
    assert inclusion.max() <= 1 + 1e-12
    rows = router.sample(experts, top_k, tokens)
    assert len(rows) == experts
    assert sum(rows) == tokens * top_k  # Σ_e M_e = tokens x top_k
    assert max(rows) <= tokens  # top_k experts of a token are distinct


@pytest.mark.parametrize("skew", [0.0, 0.6, 1.2])
def test_unique_experts_equal_a_simulation(skew: float) -> None:
    """Brute force: tokens that include expert e with its probability, whatever the others do."""
    experts, top_k, tokens = 64, 6, 12
    inclusion = Router(skew=skew).inclusion(experts, top_k)
    rng = np.random.default_rng(7)
    hits = (rng.random((4000, tokens, experts)) < inclusion).any(axis=1).sum(axis=1)
    assert abs(hits.mean() - float(unique_experts(inclusion, tokens))) < 4 * hits.std() / np.sqrt(len(hits))


@pytest.mark.parametrize("skew", [0.0, 1.2])
def test_draws_have_the_expected_experts_and_shares(skew: float) -> None:
    experts, top_k, tokens = 64, 6, 20
    inclusion = Router(skew=skew).inclusion(experts, top_k)
    order = np.argsort(-inclusion)
    draws = []
    for seed in range(400):
        own = Router(skew=skew, seed=seed).inclusion(experts, top_k)
        rows = np.asarray(Router(skew=skew, seed=seed).sample(experts, top_k, tokens))
        draws.append(rows[np.argsort(-own, kind="stable")])
    active = (np.asarray(draws) > 0).sum(axis=1)
    assert abs(active.mean() - float(unique_experts(inclusion, tokens))) < 4 * active.std() / 20
    mean = np.asarray(draws).mean(axis=0)
    assert np.abs(mean - tokens * inclusion[order]).max() < 0.6  # standard error of a mean of 400 is below 0.12


def test_unique_experts_equal_uniform_draws_without_replacement() -> None:
    experts, top_k, tokens = 32, 4, 10
    rng = np.random.default_rng(3)
    draws = rng.random((3000, tokens, experts)).argpartition(top_k, axis=2)[:, :, :top_k].reshape(3000, -1)
    counts = [len(np.unique(step)) for step in draws]
    formula = unique_experts(np.full(experts, top_k / experts), tokens)
    assert formula == pytest.approx(experts * (1 - (1 - top_k / experts) ** tokens))
    assert abs(np.mean(counts) - formula) < 4 * np.std(counts) / np.sqrt(len(counts))


def test_gpt_oss_120b_on_one_device_touches_as_many_experts_as_were_seen() -> None:
    """Concurrency 64 to 256, 128 experts, top-4: 111.2, 121.9, 125.8, 128.0 active experts."""
    found = [float(unique_experts(np.full(128, 4 / 128), batch)) for batch in (64, 96, 128, 256)]
    assert [round(x, 1) for x in found] == [111.2, 121.9, 125.8, 128.0]


def test_a_measured_histogram_counts_alone_where_it_fits() -> None:
    router = Router(rows_per_expert=(3, 0, 5, 0))
    assert router.sample(4, 2, 4) == (3, 0, 5, 0)
    assert sum(router.sample(4, 2, 100)) == 200  # its shares, for another number of tokens
    assert router.sample(4, 2, 100)[1] == 0


def test_same_seed_same_rows() -> None:
    assert Router(skew=1.2, seed=4).sample(16, 2, 50) == Router(skew=1.2, seed=4).sample(16, 2, 50)


def test_summary_of_the_notes_histogram() -> None:
    found = summarise([0, 1, 7, 0, 13])
    assert (found.mean, found.median, found.p90, found.max, found.active_experts) == (4.2, 1, 13, 13, 3)
    assert found.empty_fraction == pytest.approx(0.4)


def test_a_wrong_histogram_is_refused() -> None:
    with pytest.raises(BadInput, match="has 2 experts, the model 4"):
        Router(rows_per_expert=(1, 1)).inclusion(4, 2)
    with pytest.raises(BadInput, match="not only zeros"):
        Router(rows_per_expert=(0, 0)).inclusion(2, 1)
    with pytest.raises(BadInput, match="skew is -1"):
        Router(skew=-1).inclusion(2, 1)
