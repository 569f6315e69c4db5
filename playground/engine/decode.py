"""The one decoding loop: draft, score in one target pass, verify, commit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playground.engine.constrain import Legality, advance, legality
from playground.engine.drafters import Drafter, NoDrafter
from playground.engine.grammar.matcher import Matcher
from playground.engine.length import Length, room
from playground.engine.model import Session
from playground.engine.sampling import Coin, Context, Knob, apply, has_nan, softmax
from playground.engine.stop import Stop
from playground.engine.trace import Candidate, KVRows, Node, Output, Pass, Row
from playground.engine.tree import ROOT, Draft
from playground.engine.verify import Rule, Verdict

NUM_SHOWN = 10  # likeliest tokens that a step keeps per row
FAILED = "The drafter failed ({}); the run goes on without drafts."
NAN_NOTE = "The target put out NaN for some tokens; they count as impossible."


def speculate(
    target: Session,
    drafter: Drafter,
    *,
    rule: Rule,
    length: Length,
    coin: Coin,
    knobs: Sequence[Knob] = (),
    stop: Stop = Stop(),
    grammar: Matcher | None = None,
    max_new_tokens: int = 64,
) -> Iterator[Pass]:
    """Decode after the target's committed tokens, one ``Pass`` per target pass, until a stop rule or the limit.

    ``rule`` judges the draft, ``length`` says how many levels to draft, ``knobs`` shape the target's law. Plain
    decoding is the drafter that proposes nothing. A drafter that fails is dropped with a note, and the run goes on.
    ``grammar`` masks every row before the knobs; it is moved on by the committed tokens. Raises ``ValueError`` when the
    prompt leaves no room for a token, ``DeadEnd`` when the grammar leaves none.
    """
    num_prompt = len(target.tokens)
    if num_prompt >= target.max_tokens:
        raise ValueError(f"The prompt has {num_prompt} tokens; this model reads at most {target.max_tokens}.")
    hidden: Tensor | None = None
    finish, clock = None, 0.0
    while finish is None and max_new_tokens > 0:
        began = time.perf_counter()
        start = len(target.tokens)
        context = Context(tuple(target.tokens), num_prompt)
        k = room(length.k, max_new_tokens - (start - num_prompt), target.max_tokens - start)
        drafter, draft, note = _propose(drafter, context, k, coin, hidden)
        drafted = time.perf_counter()

        pending = start - target.num_kv_rows
        scores = target.score(draft)
        if scores.logits.is_cuda:
            torch.cuda.synchronize(scores.logits.device)
        scored = time.perf_counter()

        judged = _judge(draft, scores.logits, context, rule, coin, knobs, grammar)
        verdict = judged.verdict
        new = [*(draft.tokens[i] for i in verdict.path), verdict.token]
        kept, finish = stop.cut(context.tokens[num_prompt:], new, max_new_tokens)
        if finish is None and start + kept >= target.max_tokens:
            finish = "context"
        if grammar:
            kept, finish = advance(grammar, new, kept, finish)
        path = verdict.path[: kept - 1]  # the newest token never keeps a row
        if scores.hidden is not None:
            hidden = scores.hidden[[*range(pending), *(pending + i for i in path)]]  # of the tokens that now have KV
        target_kv = target.commit(path, new[kept - 1])
        drafter, drafter_kv, failed = _follow(drafter, target.tokens)
        length = length.after(max(draft.depths, default=0), len(verdict.path))

        note = " ".join(filter(None, [note, failed, NAN_NOTE if has_nan(scores.logits) else None])) or None
        step = Pass(
            start=start,
            **_record(draft, judged, kept),
            target_kv=target_kv,
            drafter_kv=drafter_kv,
            started_ms=clock,
            draft_ms=1e3 * (drafted - began),
            verify_ms=1e3 * (scored - drafted),
            other_ms=0.0,
            finish=finish,
            note=note,
        )
        step = replace(step, other_ms=1e3 * (time.perf_counter() - scored))
        clock = step.ended_ms
        yield step


class _Judged(NamedTuple):
    """Logits ``[n + 1, vocab]`` as the model gave them, after the grammar, after the knobs; their law; the verdict."""

    raw: Tensor
    masked: Tensor
    logits: Tensor
    p: Tensor
    verdict: Verdict
    legal: Legality | None
    mask_ms: float | None


def _judge(
    draft: Draft,
    logits: Tensor,
    context: Context,
    rule: Rule,
    coin: Coin,
    knobs: Sequence[Knob],
    grammar: Matcher | None,
) -> _Judged:
    raw = masked = apply((), logits)
    legal = mask_ms = None
    if grammar:
        began = time.perf_counter()
        legal = legality(grammar, draft, raw.shape[-1])
        masked = legal.mask(raw)
        mask_ms = 1e3 * (time.perf_counter() - began)
    shaped = apply(knobs, masked, _contexts(knobs, context, draft)) if knobs or legal else raw
    p = softmax(shaped)
    verdict = rule(draft, p, coin, len(context.tokens))
    if legal:
        legal.check(verdict.path)
    return _Judged(raw, masked, shaped, p, verdict, legal, mask_ms)


def _record(draft: Draft, judged: _Judged, kept: int) -> dict[str, Any]:
    """What a ``Pass`` keeps of a verdict of which ``kept`` tokens were put out."""
    raw, masked, logits, p, verdict, legal, mask_ms = judged
    return {
        "nodes": _nodes(draft, p, verdict, legal.blocked if legal else frozenset()),
        "rows": _rows(draft, p, logits, verdict),
        "outputs": _outputs(draft, p, raw if logits is not raw else None, verdict)[:kept],
        "emit_coin": verdict.emit_coin,
        "num_verified": len(verdict.path),
        "discarded": len(verdict.path) + 1 - kept,
        "masks": legal.report(raw, masked) if legal else (),
        "mask_ms": mask_ms,
    }


def _propose(
    drafter: Drafter, context: Context, k: int, coin: Coin, hidden: Tensor | None
) -> tuple[Drafter, Draft, str | None]:
    """The draft, and who drafts from now on: whatever a drafter does, the target can go on alone, with a note."""
    if k == 0 and not drafter.taps:  # who reads hidden states must see every row, also where no draft fits
        return drafter, Draft(), None
    try:
        draft = drafter.propose(context, k, coin, hidden)
        if max(draft.depths, default=0) > k:
            raise ValueError(f"it drafted {max(draft.depths)} levels where {k} fit")
        return drafter, draft, None
    except Exception as error:
        return NoDrafter(), Draft(), FAILED.format(error)


def _follow(drafter: Drafter, tokens: Sequence[int]) -> tuple[Drafter, KVRows | None, str | None]:
    """The drafter's KV rows after it has followed the committed tokens, and who drafts from now on."""
    try:
        return drafter, drafter.sync(tokens), None
    except Exception as error:
        return NoDrafter(), None, FAILED.format(error)


def race(lanes: Mapping[str, Iterator[Pass]]) -> Iterator[tuple[str, Pass]]:
    """Run lanes side by side on one clock: whichever lane's own clock is behind makes the next step.

    The first lane leads: its step comes after every other lane has reached the time at which that step ended.
    """
    (lead, leader), *others = lanes.items()
    clocks = dict.fromkeys(lanes, 0.0)
    for step in leader:
        for name, lane in others:
            while clocks[name] < step.ended_ms and (other := next(lane, None)):
                clocks[name] = other.ended_ms
                yield name, other
        yield lead, step
    for name, lane in others:
        for other in lane:
            yield name, other


def _contexts(knobs: Sequence[Knob], context: Context, draft: Draft) -> list[Context] | None:
    """What each row of logits has seen: the history, and for row i + 1 also the path to node i."""
    if not any(knob.reads_context for knob in knobs):
        return None
    paths = [draft.path_tokens(node) for node in range(ROOT, len(draft))]
    return [Context((*context.tokens, *path), context.num_prompt) for path in paths]


def _nodes(draft: Draft, p: Tensor, verdict: Verdict, blocked: frozenset[int]) -> tuple[Node, ...]:
    def state(i: int) -> str:
        if i in blocked:
            return "blocked"
        return "accepted" if i in verdict.path else "rejected" if i in verdict.coins else "unjudged"

    return tuple(
        Node(
            token=token,
            parent=parent,
            depth=draft.depths[i],
            state=state(i),
            p=float(p[parent + 1, token]),
            q=float(draft.q[i, token]) if draft.q is not None else None,
            coin=verdict.coins.get(i),
        )
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True))
    )


def _rows(draft: Draft, p: Tensor, logits: Tensor, verdict: Verdict) -> tuple[Row, ...]:
    """What the picture shows of each row: the likeliest tokens of p and of q, the drafted ones, and the one put out."""
    tops = logits.topk(min(NUM_SHOWN, logits.shape[-1]), dim=-1)
    best = p.argmax(-1).tolist()
    last = verdict.path[-1] if verdict.path else ROOT
    rows = []
    for row, (values, top) in enumerate(zip(tops.values.tolist(), tops.indices.tolist(), strict=True)):
        children = draft.children(row - 1)
        q = draft.q[children[0]] if children and draft.q is not None else None
        left = verdict.law if row == last + 1 and verdict.is_recovered else None
        shown = [token for token, value in zip(top, values, strict=True) if value > -torch.inf]
        shown += [draft.tokens[child] for child in children]
        if q is not None:
            values_q, top_q = q.topk(min(NUM_SHOWN, len(q)))
            shown += [token for token, value in zip(top_q.tolist(), values_q.tolist(), strict=True) if value > 0]
        if row == last + 1:
            shown.append(verdict.token)
        ids = list(dict.fromkeys([best[row], *shown]))
        ps = p[row, ids].tolist()
        qs = q[ids].tolist() if q is not None else [None] * len(ids)
        rs = left[ids].tolist() if left is not None else [None] * len(ids)
        rows.append(
            Row(
                argmax=best[row],
                margin=values[0] - values[1] if len(values) > 1 and values[1] > -torch.inf else None,
                top=tuple(map(Candidate, ids, ps, qs, rs)),
                tail_p=max(0.0, 1.0 - sum(ps)),
                tail_q=max(0.0, 1.0 - sum(qs)) if q is not None else None,
            )
        )
    return tuple(rows)


def _outputs(draft: Draft, p: Tensor, raw: Tensor | None, verdict: Verdict) -> tuple[Output, ...]:
    """The tokens put out; ``raw`` are the logits before mask and knobs, ``None`` where there were none."""
    rows = [0, *(i + 1 for i in verdict.path)]
    tokens = [*(draft.tokens[i] for i in verdict.path), verdict.token]
    last = "recovered" if verdict.is_recovered else "bonus" if verdict.path else "plain"
    kinds = ["accepted"] * len(verdict.path) + [last]
    ps = p[rows, tokens]
    logprobs = ps.log() if raw is None else raw[rows, tokens] - raw[rows].logsumexp(-1)
    return tuple(map(Output, tokens, kinds, ps.tolist(), logprobs.tolist()))
