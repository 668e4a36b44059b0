from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest

from stepscope.errors import BadInput
from stepscope.simulate.request import Segment, block_keys
from stepscope.simulate.synthetic import (
    Conversations,
    Lengths,
    PrefixTree,
    closed_loop,
    conversations,
    gamma_arrivals,
    poisson_arrivals,
    ramp_arrivals,
    single_requests,
)
from stepscope.simulate.workload import Workload, read_azure, read_burstgpt, read_csv, read_mooncake

MOONCAKE = """\
{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3500, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 3]}
{"timestamp": 4000, "input_length": 10, "output_length": 0, "hash_ids": [4]}
"""
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
AZURE_2023 = AZURE + "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8"
AZURE_2024 = AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\r\n2024-05-10 00:00:01.009930+00:00,2399,6\r\n"
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
OWN = """\
arrival_s,prompt_len,output_len,request_id,max_tokens,after,prefix,prefix_len
2,100,5,b,,a,,
0.5,300,5,a,9,,system,200
1,250,5,c,,,system,200
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "requests"
    path.write_bytes(text.encode())
    return path


def lengths(workload: Workload) -> list[tuple[float, int, int]]:
    return [(round(each.arrival_s, 6), each.prompt_len, each.output_len) for each in workload.requests]


def keys(text: tuple[Segment, ...]) -> list[int]:
    return block_keys([(part.source, part.start, part.length) for part in text], 16)


def test_mooncake_prompts_share_what_their_hashes_share(tmp_path: Path) -> None:
    found = read_mooncake(write(tmp_path, MOONCAKE))
    assert lengths(found) == [(0.0, 1100, 5), (0.5, 1030, 7)]
    assert found.num_left_out == 1
    first, second = (keys(each.text) for each in found.requests)
    assert sum(a == b for a, b in zip(first, second, strict=False)) == 64  # two hashes of 512 tokens in blocks of 16


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"timestamp": 0}', "line 1: KeyError"),
        ("nonsense", "line 1: JSONDecodeError"),
        ('{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0]}', "1 hash_ids for 513 tokens"),
    ],
)
def test_a_line_that_is_not_mooncakes_is_refused(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_mooncake(write(tmp_path, line))


def test_azure_of_both_years(tmp_path: Path) -> None:
    assert lengths(read_azure(write(tmp_path, AZURE_2023))) == [(0.0, 4808, 10), (0.052, 3180, 8)]
    assert lengths(read_azure(write(tmp_path, AZURE_2024))) == [(0.0, 2162, 5), (1.0, 2399, 6)]


def test_failed_calls_of_burstgpt_are_counted(tmp_path: Path) -> None:
    found = read_burstgpt(write(tmp_path, BURSTGPT))
    assert lengths(found) == [(0.0, 472, 18), (113.0, 417, 276)]
    assert found.num_left_out == 1


def test_ones_own_csv_can_name_prefixes_and_turns(tmp_path: Path) -> None:
    found = read_csv(write(tmp_path, OWN)).requests
    assert [each.request_id for each in found] == ["b", "a", "c"]
    b, a, c = found
    assert (a.max_tokens, b.after, b.text) == (9, "a", ())
    assert keys(a.text)[:12] == keys(c.text)[:12]
    assert keys(a.text)[12] != keys(c.text)[12]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,prompt_len\n0,1\n", "no column output_len"),
        ("arrival_s,prompt_len,output_len\n0,x,1\n", "line 2"),
        ("arrival_s,prompt_len,output_len,max_tokens\n0,1,1,x\n", "max_tokens is 'x'"),
        ("arrival_s,prompt_len,output_len,prefix,prefix_len\n0,1,1,p,2\n", "prefix_len 2"),
        ("arrival_s,prompt_len,output_len,prefix\n0,1,1,p\n", "give both"),
        ("arrival_s,prompt_len,output_len\n-1,1,1\n", "arrives at -1.0 s"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_csv(write(tmp_path, text))


def test_a_limit_and_a_factor(tmp_path: Path) -> None:
    found = read_azure(write(tmp_path, AZURE_2024), limit=1)
    assert len(found.requests) == 1
    assert lengths(read_azure(write(tmp_path, AZURE_2024)).sped_up(4.0))[1][0] == 0.25
    assert len(read_azure(write(tmp_path, AZURE_2024)).first(1).requests) == 1
    with pytest.raises(BadInput, match="above 0"):
        found.sped_up(0.0)


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_spread_asked_for(variation: float) -> None:
    found = gaps(gamma_arrivals(Random(1), rate_per_s=10.0, variation=variation, count=40_000))
    assert fmean(found) == pytest.approx(0.1, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(variation, rel=0.06)


def test_poisson_gaps_have_the_mean_asked_for() -> None:
    assert fmean(gaps(poisson_arrivals(Random(1), rate_per_s=4.0, count=40_000))) == pytest.approx(0.25, rel=0.03)


def test_a_ramp_has_its_requests_where_the_rate_is() -> None:
    times = ramp_arrivals(Random(1), first_per_s=0.0, last_per_s=200.0, duration_s=100.0)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert sum(time < 50 for time in times) == pytest.approx(2_500, rel=0.1)
    assert times == sorted(times)
    assert times[-1] <= 100.0


def test_lengths_have_their_median_and_keep_their_bounds() -> None:
    rng = Random(1)
    drawn = sorted(Lengths(median=400, sigma=1.0, least=20, most=2000).draw(rng) for _ in range(4001))
    assert drawn[2000] == pytest.approx(400, rel=0.06)
    assert (drawn[0], drawn[-1]) == (20, 2000)
    assert Lengths(median=7).draw(rng) == 7


def test_a_prefix_tree_shares_level_by_level() -> None:
    rng = Random(1)
    tree = PrefixTree(levels=((1, 100), (3, 50)), skew=1.0)
    paths = [tree.draw(rng) for _ in range(300)]
    assert {path[0] for path in paths} == {Segment(source=0, length=100)}
    counts = sorted(sum(path[1] == leaf for path in paths) for leaf in {path[1] for path in paths})
    assert counts == pytest.approx([300 * 2 / 11, 300 * 3 / 11, 300 * 6 / 11], rel=0.25)


def test_each_turn_begins_with_all_turns_before_it() -> None:
    talk = Conversations(turns=Lengths(median=3), question=Lengths(median=10), answer=Lengths(median=6), think_s=2.0)
    first, second, third = conversations(Random(1), [1.0], talk).requests
    assert [each.prompt_len for each in (first, second, third)] == [10, 26, 42]
    assert (first.arrival_s, second.arrival_s, third.after) == (1.0, 2.0, "0.1")
    assert third.text[: len(second.text)] == second.text


def test_single_requests_share_only_their_prefix() -> None:
    tree = PrefixTree(levels=((1, 32),))
    made = single_requests(
        Random(1), [0.0, 1.0], question=Lengths(median=32), answer=Lengths(median=1), prefixes=tree
    ).requests
    first, second = (keys(each.text) for each in made)
    assert (first[:2], first[2] != second[2]) == (second[:2], True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: poisson_arrivals(Random(1), rate_per_s=-1.0, count=1),
        lambda: poisson_arrivals(Random(1), rate_per_s=0.0, count=1),
        lambda: gamma_arrivals(Random(1), rate_per_s=1.0, variation=0.0, count=1),
        lambda: ramp_arrivals(Random(1), first_per_s=-1.0, last_per_s=2.0, duration_s=1.0),
        lambda: ramp_arrivals(Random(1), first_per_s=0.0, last_per_s=2.0, duration_s=0.0),
        lambda: Lengths(median=0),
        lambda: Lengths(median=5, most=4),
        lambda: Lengths(median=5, sigma=-1.0),
        lambda: PrefixTree(levels=((0, 5),)),
        lambda: PrefixTree(levels=((1, 5),), skew=-1.0),
        lambda: Conversations(
            turns=Lengths(median=1), question=Lengths(median=1), answer=Lengths(median=1), think_s=-1.0
        ),
        lambda: closed_loop([], clients=0),
    ],
)
def test_impossible_workloads_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(BadInput):
        make()
