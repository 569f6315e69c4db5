"""Small exact worlds for the engine's tests: table models, random draft trees, and the law of what a pass puts out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch
from hypothesis import strategies as st
from torch import Tensor

from models.table import TableModel, random_law
from playground.engine.decode import speculate
from playground.engine.drafters import Drafter, DraftModel, NGram, NoDrafter
from playground.engine.length import Fixed
from playground.engine.sampling import Coin, Context, Knob, coins, draw
from playground.engine.trace import KVRows, Pass
from playground.engine.tree import ROOT, Draft
from playground.engine.verify import Rule, verify_greedy

Tokens = tuple[int, ...]


def table(vocab: int, seed: int, sharpness: float = 1.0, **options: object) -> TableModel:
    """A model whose words are letters, with random laws fixed by ``seed``."""
    return TableModel(tuple("abcdefghijklmnop"[:vocab]), cache(random_law(vocab, seed, sharpness)), **options)


def laws(vocab: int, seed: int, depth: int, sharpness: float = 1.5) -> dict[Tokens, Tensor]:
    """An independent random law after every output of fewer than ``depth`` tokens."""
    generator = torch.Generator().manual_seed(seed)
    contexts = [c for n in range(depth) for c in itertools.product(range(vocab), repeat=n)]
    logits = sharpness * torch.randn(len(contexts), vocab, generator=generator, dtype=torch.float64)
    return dict(zip(contexts, logits.softmax(-1), strict=True))


def rows(draft: Draft, law: Mapping[Tokens, Tensor]) -> Tensor:
    """The target's ``[n + 1, vocab]`` for a draft."""
    return torch.stack([law[draft.path_tokens(node)] for node in range(ROOT, len(draft))])


def sample_tree(parents: Sequence[int], q: Mapping[Tokens, Tensor], coin: Coin) -> Draft:
    """A draft of this shape, siblings drawn without replacement, each with the law that it was drawn from."""
    tokens: list[int] = []
    paths: dict[int, Tokens] = {ROOT: ()}
    drawn: list[Tensor] = []
    for node, parent in enumerate(parents):
        law = q[paths[parent]]
        if siblings := [tokens[i] for i in range(node) if parents[i] == parent]:
            law = law.index_fill(0, torch.tensor(siblings), 0)
            law /= law.sum()
        tokens.append(draw(law, coin(node, "draft")))
        paths[node] = (*paths[parent], tokens[node])
        drawn.append(law)
    return Draft(tuple(tokens), tuple(parents), torch.stack(drawn))


def completed(found: Mapping[Tokens, float], law: Mapping[Tokens, Tensor], length: int) -> dict[Tokens, float]:
    """The law of the first ``length`` tokens when each output found in one pass is continued by plain sampling."""
    total = dict.fromkeys(itertools.product(range(len(law[()])), repeat=length), 0.0)
    for output, probability in found.items():
        for tail in itertools.product(range(len(law[()])), repeat=max(0, length - len(output))):
            whole = (*output, *tail)[:length]
            total[whole] += probability * plain(law, whole, since=len(output))
    return total


def plain(law: Mapping[Tokens, Tensor], tokens: Tokens, since: int = 0) -> float:
    """The probability that plain sampling goes on with ``tokens[since:]`` after ``tokens[:since]``."""
    return math.prod(float(law[tokens[:i]][tokens[i]]) for i in range(since, len(tokens)))


@st.composite
def shapes(draw_: st.DrawFn, max_nodes: int, max_depth: int, max_children: int) -> Tokens:
    """Parents of a random draft tree."""
    parents: list[int] = []
    depths = {ROOT: 0}
    for node in range(draw_(st.integers(1, max_nodes))):
        free = [p for p in depths if depths[p] < max_depth and parents.count(p) < max_children]
        if not free:
            break
        parents.append(draw_(st.sampled_from(free)))
        depths[node] = depths[parents[-1]] + 1
    return tuple(parents)


@st.composite
def trees(draw_: st.DrawFn, vocab: int, max_nodes: int = 4, max_depth: int = 3) -> Draft:
    """A random draft tree of tokens chosen without chance."""
    parents = draw_(shapes(max_nodes, max_depth, vocab))
    tokens: list[int] = []
    for node, parent in enumerate(parents):
        taken = {tokens[i] for i in range(node) if parents[i] == parent}
        tokens.append(draw_(st.sampled_from(sorted(set(range(vocab)) - taken))))
    return Draft(tuple(tokens), parents)


class RandomTrees:
    """A drafter that guesses: random trees, now and then with the target's own continuation in them."""

    taps: Tokens = ()
    name = "random_trees"

    def __init__(self, seed: int, vocab: int, reply: Sequence[int] = (), max_nodes: int = 8) -> None:
        self.coin, self.vocab, self.reply, self.max_nodes = coins(seed), vocab, tuple(reply), max_nodes

    def propose(self, context: Context, k: int, coin: Coin, hidden: Tensor | None = None) -> Draft:
        done = len(context.tokens) - context.num_prompt
        tokens: list[int] = []
        parents: list[int] = []
        depths = {ROOT: 0}
        for i in range(self.max_nodes):
            free = [node for node in depths if depths[node] < k]
            parent = free[int(self.coin(len(context.tokens), f"parent {i}") * len(free))]
            token = int(self.coin(len(context.tokens), f"token {i}") * self.vocab)
            if self.coin(len(context.tokens), f"hit {i}") < 0.7 and done + depths[parent] < len(self.reply):
                token = self.reply[done + depths[parent]]
            if (parent, token) not in zip(parents, tokens, strict=True):
                depths[len(tokens)] = depths[parent] + 1
                tokens.append(token)
                parents.append(parent)
        return Draft(tuple(tokens), tuple(parents))

    def sync(self, tokens: Sequence[int]) -> KVRows | None:
        return None


def run(
    model: TableModel,
    prompt: Sequence[int],
    drafter: Drafter | None = None,
    *,
    rule: Rule = verify_greedy,
    k: int = 3,
    seed: int = 0,
    knobs: Sequence[Knob] = (),
    **options: object,
) -> Iterator[Pass]:
    """``speculate`` on a fresh session, with the defaults that most tests want."""
    options = {"length": Fixed(k), "coin": coins(seed), "knobs": knobs, **options}
    return speculate(model.session(prompt), drafter or NoDrafter(), rule=rule, **options)


def outputs(steps: Iterator[Pass] | Sequence[Pass]) -> Tokens:
    return tuple(output.token for step in steps for output in step.outputs)


def drafters(model: TableModel, prompt: Sequence[int], reply: Sequence[int], seed: int) -> dict[str, Drafter]:
    """One of each kind; the draft model's laws have nothing to do with the target's."""
    other = table(model.vocab_size, seed + 1)
    return {
        "trees": RandomTrees(seed, model.vocab_size, reply),
        "ngram": NGram(3),
        "draft_model": DraftModel(other.session(prompt), ()),
        "same_model": DraftModel(model.session(prompt), ()),
    }
