from __future__ import annotations

from stepscope.simulate.balancer import ByHand, LeastLoaded, PrefixAffinity, RankLoad, RoundRobin
from stepscope.simulate.clock import to_ticks
from stepscope.simulate.request import Request, Segment

SECOND = to_ticks(1.0)


def asked(source: int, length: int = 160) -> Request:
    text = (Segment(source=source, length=length), Segment(source=1000, length=1))
    return Request(request_id=str(source), arrival_s=0.0, prompt_len=length, output_len=1, text=text)


def load(waiting: int, running: int, usage: float = 0.0, inside: int | None = None) -> RankLoad:
    told = waiting + running if inside is None else inside
    return RankLoad(num_waiting=waiting, num_running=running, kv_usage=usage, num_inside=told)


def test_round_robin_goes_round() -> None:
    chooser = RoundRobin().start(3)
    assert [chooser.choose(asked(1), 0, [load(0, 0)] * 3) for _ in range(4)] == [0, 1, 2, 0]


def test_a_waiting_request_counts_as_four_running_ones_in_older_engines() -> None:
    chooser = LeastLoaded(formula="waiting_x4", refresh_s=0.0).start(3)
    assert chooser.choose(asked(1), 0, [load(1, 0), load(0, 3), load(0, 5)]) == 1
    assert chooser.choose(asked(1), 0, [load(1, 0), load(0, 4), load(0, 5)]) == 0


def test_a_queue_counts_more_where_the_cache_is_full() -> None:
    loads = [load(2, 2, usage=0.9), load(0, 8)]
    assert LeastLoaded().start(2).choose(asked(1), 0, loads) == 1  # 4 + 2 x 6 x 0.4 = 8.8
    loads = [load(2, 2, usage=0.5), load(0, 8)]
    assert LeastLoaded().start(2).choose(asked(1), 0, loads) == 0


def test_between_two_looks_choices_count_and_news_does_not() -> None:
    chooser = LeastLoaded(formula="waiting_x4").start(2)
    begin = [load(0, 2), load(0, 3)]
    assert [chooser.choose(asked(1), 0, begin) for _ in range(3)] == [0, 1, 0]  # 2 or 3, 6 or 3, 6 or 7
    news = [load(0, 0), load(0, 0)]
    assert chooser.choose(asked(1), SECOND // 20, news) == 1  # 10 or 7
    assert chooser.choose(asked(1), SECOND, news) == 0


def test_equal_ranks_take_turns() -> None:
    chooser = LeastLoaded().start(3)
    inside = [0, 0, 0]
    chosen = []
    for _ in range(6):
        chosen.append(chooser.choose(asked(1), 0, [load(0, 0, inside=count) for count in inside]))
        inside[chosen[-1]] += 1
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_known_prefix_draws_to_its_rank_unless_that_is_much_fuller() -> None:
    chooser = PrefixAffinity().start(2)
    assert chooser.choose(asked(1), 0, [load(0, 1), load(0, 0)]) == 1
    assert chooser.choose(asked(1), 0, [load(0, 0), load(0, 1)]) == 1
    assert chooser.choose(asked(2), 0, [load(0, 0), load(0, 1)]) == 0
    assert chooser.choose(asked(1), 0, [load(0, 0), load(0, 65)]) == 0
    plain = Request(request_id="own", arrival_s=0.0, prompt_len=160, output_len=1)
    assert chooser.choose(plain, 0, [load(0, 3), load(0, 2)]) == 1


def test_a_short_match_does_not_count() -> None:
    chooser = PrefixAffinity(least_match=0.5).start(2)
    chooser.choose(asked(1, 16), 0, [load(0, 1), load(0, 0)])
    longer = (Segment(source=1, length=16), Segment(source=9, length=100))
    request = Request(request_id="x", arrival_s=0.0, prompt_len=100, output_len=1, text=longer)
    assert chooser.choose(request, 0, [load(0, 0), load(0, 1)]) == 0


def test_by_hand_is_obeyed() -> None:
    assert ByHand(ranks={"7": 1}).start(2).choose(asked(7), 0, [load(0, 0), load(0, 9)]) == 1
