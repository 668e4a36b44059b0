"""Event loop: a whole simulation as one function over columns of integers, advancing all decoding requests together.

A step's number stands for the progress of everything that decodes: a request whose prompt ends with step n puts out its
last token in step n + output_len - 1, so its end is an entry of a heap and a step costs no look at its rows. Σk grows
by B a step; the rows at a block's edge follow from counts by residue. Steps of decodes alone are jumped in closed form
until a request ends, the next one comes, or the line of their time bends; everything is exact in whole ticks.

B: decode rows, S: Σ kv_len of the next step's, n: a step's number. The same source runs as Python over lists and
compiled over arrays (`compiled`), which is why it is one long function of scalars. What it does not hold it never
answers: it returns why (`REASONS`), and the engine simulates request by request.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

DONE, BLOCKS_RUN_OUT, NOBODY_FITS, NO_TIME, BACKWARDS, TOO_LONG = range(6)
REASONS = {
    BLOCKS_RUN_OUT: "blocks run out, and somebody is preempted",
    NOBODY_FITS: "requests wait and none is admitted",
    NO_TIME: "a step has more tokens than the table of times",
    BACKWARDS: "a step takes less than no time",
    TOO_LONG: "the run is longer than 64 bits of ticks hold",
}


class Demand(NamedTuple):
    """Requests as columns (lists or arrays), and who follows whom.

    Attributes:
        arrival: ticks; of a follow-up, after the end of the request before it.
        prompt: tokens.
        output: tokens that it really puts out.
        is_foreseen: 1 where the scheduler knows the end, 0 where a stop token brings it.
        order: those that follow nobody, by time; the last is -1.
        first_follower: of each; -1: none.
        next_follower: of the same request; -1: none.
    """

    arrival: Any
    prompt: Any
    output: Any
    is_foreseen: Any
    order: Any
    first_follower: Any
    next_follower: Any


class LoopRules(NamedTuple):
    """A scheduler's rules as integers; flags are 0 or 1."""

    budget: int  # tokens a step
    seats: int
    block_size: int
    num_blocks: int  # that can be used
    watermark_blocks: int
    is_sarathi: int
    asks_for_whole_prompt: int  # at admission, also where blocks are taken chunk by chunk
    depth: int  # steps in flight when the next one is waited for: 1, or 2 in async scheduling
    host: int  # ticks
    never: int  # the tick at which nothing comes any more, and beyond which no run may go


class Times(NamedTuple):
    """A StepTime as columns; the pieces of `decode_line(B)` are begin[B] to begin[B + 1] of the next three."""

    by_tokens: Sequence[int]
    begin: Sequence[int]
    start: Sequence[int]
    ticks: Sequence[int]
    slope: Sequence[int]
    per_step: int
    per_row: int
    per_query: int
    per_kv: int
    per_query_kv: int
    bin_len: int  # of PrefillBins; 0: the terms above
    bins: Sequence[int]  # PrefillBins' ticks, row after row
    num_sides: int  # entries in a row of them
    most_ticks: int  # a step's most without what follows from sums
    most_slope: int  # of the lines, without sign


class Found(NamedTuple):
    """What a run fills in, in ticks: columns by request; totals: steps, scheduled tokens, end."""

    arrival: Any  # of sequences that can be written
    first: Any
    last: Any
    totals: Any


def steps_until(gap: int, length: int, growth: int, most: int) -> int:
    """The least number of steps, 1 to `most`, that together take `gap` ticks or more; all of them where none does.

    The first takes `length`, each further one `growth` more, none less than 0. The root of the quadratic is only a
    first guess: the integers decide.

    >>> steps_until(25, 10, 0, 100), steps_until(25, 10, 5, 100), steps_until(25, 1, 0, 7)
    (3, 2, 7)
    """
    if length * most + growth * (most * (most - 1) // 2) <= gap:
        return most
    if growth == 0:
        return max(-(-gap // length), 1)
    half = length - 0.5 * growth
    root = sqrt(max(half * half + 2.0 * growth * gap, 0.0))
    count = min(max(int(2.0 * gap / (half + root)), 1), most)
    while length * count + growth * (count * (count - 1) // 2) < gap:
        count += 1
    while count > 1 and length * (count - 1) + growth * ((count - 1) * (count - 2) // 2) >= gap:
        count -= 1
    return count


def run_events(  # noqa: C901, PLR0911, PLR0912, PLR0915  # one function of scalars: see the top
    demand: Demand, rules: LoopRules, times: Times, found: Found
) -> int:
    """Simulate; DONE, or why not. In `found`, columns begin as zeros."""
    arrival, prompt, output, is_foreseen, order, first_follower, next_follower = demand
    budget, seats, block_size, num_blocks, watermark, is_sarathi, asks_whole, depth, host, never = rules
    by_tokens, begin, piece_start, piece_ticks, piece_slope, per_step, per_row, per_query = times[:8]
    per_kv, per_query_kv, bin_len, bins, num_sides = times[8:13]
    came, first, last, totals = found
    count = len(arrival)
    num_rows = len(begin) - 1

    coming = 0  # place in `order`
    follows = [(0, 0)]  # heap of (time, request)
    follows.pop()
    queue = [0]  # requests in the order in which they came
    queue.pop()
    head = 0  # of `queue`: the next to be admitted
    fresh = [0]  # step x count + request, where a prompt ends with the step
    fresh.pop()
    told = 0  # of `fresh`: the next to be given its first token's time
    ends = [0]  # heap of step x count + request, where it puts out its last token
    ends.pop()
    leaving = [0]  # requests that end with the step in flight
    leaving.pop()

    now = end = oldest_end = 0  # scheduling time; end of the latest step; of the oldest in flight
    flying = 0
    step = num_tokens = 0
    rows = kv = seated = 0  # B; Σ num_computed of them; requests with a seat
    partial, partial_done = -1, 0  # the one request whose prompt has begun and not ended
    free = num_blocks
    at_edge = [0] * block_size  # decode rows by -step % block_size of the steps in which they need a block
    place = 0  # piece of the last line

    while True:
        # who has come
        while True:
            independent = order[coming]
            time = arrival[independent] if independent >= 0 else never
            if follows and follows[0][0] <= time:
                if follows[0][0] > now:
                    next_time = follows[0][0]
                    break
                queue.append(heappop(follows)[1])
            else:
                if independent < 0 or time > now:
                    next_time = time
                    break
                came[independent] = time
                queue.append(independent)
                coming += 1

        # async: requests whose last token is on the way are not scheduled again
        if depth == 2 and flying == 1:
            while ends and ends[0] // count == step:
                each = heappop(ends) % count
                leaving.append(each)
                if is_foreseen[each]:
                    rows -= 1
                    kv -= prompt[each] + output[each] - 1
                    at_edge[(prompt[each] + output[each] - step - 2) % block_size] -= 1

        # is somebody's prompt part of the next step?
        left = budget - rows
        needed = at_edge[-(step + 1) % block_size]
        is_mixed = False
        can_come = False  # whether an arrival could get into the steps that follow
        if left > 0:
            if partial >= 0:
                is_mixed = True
            elif seated < seats:
                if head == len(queue):
                    can_come = True
                else:
                    each = queue[head]
                    asked = prompt[each]
                    if not (is_sarathi or asks_whole):
                        asked = min(asked, left)
                    spare = watermark if is_sarathi or seated else 0
                    is_mixed = -(-asked // block_size) + spare <= free - needed

        if is_mixed:
            step += 1
            kv += rows
            free -= needed
            if free < 0 or (is_sarathi and rows and free < 1):
                return BLOCKS_RUN_OUT
            tokens = rows
            prefill_rows = query_sum = kv_sum = query_kv_sum = square_sum = num_bins = 0
            new_rows = new_kv = 0
            while left > 0:
                if partial >= 0:
                    each, done = partial, partial_done
                elif head < len(queue) and seated < seats:
                    each, done = queue[head], 0
                    asked = prompt[each]
                    if not (is_sarathi or asks_whole):
                        asked = min(asked, left)
                    spare = watermark if is_sarathi or seated else 0
                    if -(-asked // block_size) + spare > free:
                        break
                    head += 1
                    seated += 1
                    if is_sarathi:
                        free -= -(-asked // block_size)
                else:
                    break
                query = min(prompt[each] - done, left)
                computed = done + query
                if not is_sarathi:
                    free -= -(-computed // block_size) - -(-done // block_size)
                    if free < 0:
                        return BLOCKS_RUN_OUT
                left -= query
                tokens += query
                prefill_rows += 1
                query_sum += query
                kv_sum += computed
                query_kv_sum += query * computed
                if bin_len:
                    square_sum += query * query
                    num_bins += -(-done // bin_len)
                if computed < prompt[each]:
                    partial, partial_done = each, computed
                    break
                partial = -1
                new_rows += 1
                new_kv += computed
                at_edge[(computed - step - 1) % block_size] += 1
                fresh.append(step * count + each)
                heappush(ends, (step + output[each] - 1) * count + each)
            if tokens >= len(by_tokens) or rows >= num_rows:
                return NO_TIME
            cost = by_tokens[tokens]
            if rows:
                low, high = begin[rows], begin[rows + 1]
                place = min(low + place, high - 1)
                while place + 1 < high and piece_start[place + 1] <= kv:
                    place += 1
                while place > low and piece_start[place] > kv:
                    place -= 1
                cost += piece_ticks[place] + piece_slope[place] * (kv - piece_start[place])
                place -= low
            if bin_len:
                side = int(sqrt(square_sum) + 0.5)
                if side >= num_sides or num_bins * num_sides >= len(bins):
                    return NO_TIME
                cost += bins[num_bins * num_sides + side]
            else:
                cost += per_step + per_row * prefill_rows + per_query * query_sum
                cost += per_kv * kv_sum + per_query_kv * query_kv_sum
            if cost < 0:
                return BACKWARDS
            num_tokens += tokens
            rows += new_rows
            kv += new_kv
            oldest_end = end
            end = max(now + host, end) + cost
            flying += 1
        elif rows:
            # decodes alone: jump
            if rows >= len(by_tokens) or rows >= num_rows:
                return NO_TIME
            final = step + 1  # the last step that is sure to have these rows
            if flying == depth - 1 and told == len(fresh) and not leaving:
                final = max(ends[0] // count, final)
            target = next_time if can_come else never
            low, high = begin[rows], begin[rows + 1]
            place = min(low + place, high - 1)
            while True:
                kv += rows  # S of the next step
                while place + 1 < high and piece_start[place + 1] <= kv:
                    place += 1
                while place > low and piece_start[place] > kv:
                    place -= 1
                length = by_tokens[rows] + piece_ticks[place] + piece_slope[place] * (kv - piece_start[place])
                growth = piece_slope[place] * rows
                most = final - step
                if place + 1 < high:
                    most = min(most, -(-(piece_start[place + 1] - kv) // rows))
                if length < 0 or length + growth * (most - 1) < 0:
                    return BACKWARDS
                if depth == 1:
                    length += host
                    jumped = steps_until(target - now, length, growth, most)
                    end = now = oldest_end = now + length * jumped + growth * (jumped * (jumped - 1) // 2)
                elif most > 1 and now + host <= end and length >= host and length + growth * (most - 1) >= host:
                    jumped = 1
                    if target > end:
                        jumped += steps_until(target - end, length, growth, most - 1)
                    now = oldest_end = end + length * (jumped - 1) + growth * ((jumped - 1) * (jumped - 2) // 2)
                    end = now + length + growth * (jumped - 1)
                else:
                    jumped = 1
                    oldest_end = end
                    end = max(now + host, end) + length
                    if flying == depth - 1:
                        now = max(now, oldest_end)
                kv += rows * (jumped - 1)
                whole = jumped // block_size
                free -= whole * rows
                for ahead in range(step + 1 + whole * block_size, step + 1 + jumped):
                    free -= at_edge[-ahead % block_size]
                if free < is_sarathi:
                    return BLOCKS_RUN_OUT
                step += jumped
                num_tokens += jumped * rows
                if step == final or now >= target or now > never:
                    break
            place -= low
            flying += 1
        elif not flying:
            if head < len(queue) or partial >= 0:
                return NOBODY_FITS
            if next_time == never:
                break
            now = next_time
            continue
        if now > never or end > never:
            return TOO_LONG
        if flying < depth and (is_mixed or rows):
            continue

        # deliver the oldest step in flight
        delivered = step - flying + 1
        if flying == 1:
            oldest_end = end
            if depth == 1:
                while ends and ends[0] // count == step:
                    each = heappop(ends) % count
                    leaving.append(each)
                    rows -= 1
                    kv -= prompt[each] + output[each] - 1
                    at_edge[(prompt[each] + output[each] - step - 2) % block_size] -= 1
        flying -= 1
        now = max(now, oldest_end)
        while told < len(fresh) and fresh[told] // count == delivered:
            first[fresh[told] % count] = now
            told += 1
        for each in leaving:
            last[each] = now
            seated -= 1
            computed = prompt[each] + output[each] - 1
            if depth == 2 and not is_foreseen[each]:
                # one decode more than needed is on its way
                rows -= 1
                kv -= computed + 1
                at_edge[(computed - delivered - 1) % block_size] -= 1
                computed += 1
            free += -(-computed // block_size)
            follower = first_follower[each]
            while follower >= 0:
                came[follower] = now + arrival[follower]
                heappush(follows, (came[follower], follower))
                follower = next_follower[follower]
        leaving.clear()
    totals[0], totals[1], totals[2] = step, num_tokens, now
    return DONE
