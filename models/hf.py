"""Any causal language model of transformers as a target or a draft model: sessions on it, and its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from models.kv import RowCache
from models.linear import faster_linears
from models.probe import check_trees, layer_windows
from models.tokens import TokenTable, differing_token, same_tokens
from playground.engine.model import Scores
from playground.engine.trace import KVRows
from playground.engine.tree import Draft

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

    from models.paged import BatchedBeams
    from playground.engine.kv import BlockPool


class HFSession:
    """One sequence on one ``HFModel``."""

    def __init__(self, model: HFModel, tokens: Sequence[int], taps: Sequence[int] = ()) -> None:
        if not tokens:
            raise ValueError("The prompt is empty: there is no token to continue from.")
        self.model, self.tokens, self.taps = model, list(tokens), tuple(taps)
        self.cache, self.draft = model.new_cache(), Draft()

    @property
    def num_kv_rows(self) -> int:
        return self.cache.num_rows - len(self.draft)

    @property
    def max_tokens(self) -> int:
        return self.model.max_tokens

    @torch.inference_mode()
    def score(self, draft: Draft) -> Scores:
        """Feed the pending tokens and the draft in one pass. After an exception the cache starts anew."""
        past = min(self.num_kv_rows, len(self.tokens) - 1)  # the newest token is fed again if it was scored before
        self.cache.keep(past, ())
        self.draft = Draft()
        if len(self.tokens) + max(draft.depths, default=0) > self.max_tokens:
            raise ValueError(f"{self.model.name} reads at most {self.max_tokens:,} tokens.")
        try:
            scores = self.model.forward(self.tokens[past:], draft, self.cache, self.taps)
        except BaseException:
            self.cache = self.model.new_cache()
            raise
        self.draft = draft
        return scores

    @torch.inference_mode()
    def commit(self, path: Sequence[int], token: int) -> KVRows:
        """Keep the rows of ``path``. Prompt rows written by the same pass count as there before it."""
        draft, base = self.draft, self.num_kv_rows
        self.cache.keep(base, path)
        self.draft = Draft()
        self.tokens += [*(draft.tokens[i] for i in path), token]
        return KVRows(base - 1, 1 + len(draft), 1 + len(path), len(draft) - len(path))

    def sync(self, tokens: Sequence[int]) -> KVRows:
        self._drop_draft()
        before = self.num_kv_rows
        most = min(before, len(self.tokens), len(tokens) - 1)
        same = next((i for i in range(most) if self.tokens[i] != tokens[i]), most)
        self.cache.keep(same, ())
        self.tokens = list(tokens)
        return KVRows(before, 0, 0, before - same, missing=len(tokens) - 1 - same)

    @torch.inference_mode()
    def fork(self) -> HFSession:
        twin = copy.copy(self)
        twin.tokens, twin.cache = list(self.tokens), self.cache.copy()
        return twin

    def _drop_draft(self) -> None:
        if self.draft:
            self.cache.keep(self.num_kv_rows, ())
            self.draft = Draft()


class HFModel:
    """A transformers model with its tokenizer. Raises ``Unsuitable`` when rows cannot be taken back or a tree fails."""

    def __init__(self, name: str, model: Any, tokenizer: Any, source: str = "") -> None:
        self.name, self.model, self.tokenizer, self.source = name, model.eval(), tokenizer, source or name
        self.config = model.config.get_text_config(decoder=True)
        self.table = TokenTable(tokenizer)
        self.num_tokens = self.table.size
        self.device, self.dtype = next(model.parameters()).device, next(model.parameters()).dtype
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.max_tokens = context_length(self.config, tokenizer)
        self.eos_ids = all_eos_ids(model, tokenizer)
        if self.device.type == "cpu":
            faster_linears(model)
        self.windows = layer_windows(model)
        check_trees(self)

    # --- Text ---

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def chat(self, text: str) -> list[int]:
        if not getattr(self.tokenizer, "chat_template", None):
            return self.encode(text)
        messages = [{"role": "user", "content": text}]
        return self.encode(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return self.table.decode(tokens)

    def texts(self, tokens: Sequence[int]) -> Mapping[int, str]:
        return {token: self.table.text(token) for token in tokens}

    def token_bytes(self) -> list[bytes | None]:
        return [self.table.content(token) for token in range(self.vocab_size)]

    def provenance(self) -> Mapping[str, str | int | float | None]:
        return {
            "target": self.name,
            "source": self.source,
            "dtype": self.dtype_name,
            "device": str(self.device),
            "threads": torch.get_num_threads() if self.device.type == "cpu" else None,
            "torch": torch.__version__,
        }

    # --- Passes ---

    def session(self, tokens: Sequence[int], taps: Sequence[int] = ()) -> HFSession:
        return HFSession(self, tokens, taps)

    def beams(self, prompt: Sequence[int], pool: BlockPool | None = None) -> BatchedBeams:
        from models.paged import BatchedBeams, CopiedCache, PagedCache

        num_layers = len(self.windows)
        return BatchedBeams(self, prompt, CopiedCache(num_layers) if pool is None else PagedCache(num_layers, pool))

    def new_cache(self) -> RowCache:
        return RowCache(len(self.windows))

    def forward(self, pending: Sequence[int], draft: Draft, cache: RowCache, taps: Sequence[int] = ()) -> Scores:
        """One pass over ``pending`` tokens and the ``draft`` below the last of them; their rows go into ``cache``."""
        past = cache.num_rows
        first = past + len(pending) - 1  # position of the token that the draft hangs from
        positions = [*range(past, past + len(pending)), *(first + depth for depth in draft.depths)]
        out = self.model(
            input_ids=torch.tensor([[*pending, *draft.tokens]], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            attention_mask=self._masks(past, positions, draft),
            cache=cache,
            use_cache=True,
            logits_to_keep=1 + len(draft),
            output_hidden_states=bool(taps),
        )
        logits = self._sampled(out.logits[0])  # [n + 1, vocab]
        hidden = torch.stack([out.hidden_states[tap][0] for tap in taps], 1) if taps else None  # [rows, taps, dim]
        return Scores(logits, hidden)

    def forward_batch(self, tokens: Sequence[Sequence[int]], cache: Cache) -> Tensor:
        """One pass over new tokens of several sequences, equally many of each and with equally many rows in ``cache``.

        Returns the logits ``[sequences, vocab]`` after the last token of each.
        """
        past = cache.get_seq_length()
        positions = range(past, past + len(tokens[0]))
        out = self.model(
            input_ids=torch.tensor(tokens, device=self.device),
            position_ids=torch.tensor([positions], device=self.device).expand(len(tokens), -1),
            attention_mask=self._masks(past, positions, Draft()),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return self._sampled(out.logits[:, -1])

    def _sampled(self, logits: Tensor) -> Tensor:
        """``logits`` ``[n, vocab]`` without what no tokenizer can read: padding of the vocabulary is never sampled."""
        logits = fit(logits, self.vocab_size)
        logits[:, self.num_tokens :] = -torch.inf
        return logits

    def _masks(self, past: int, positions: Sequence[int], draft: Draft) -> Any:
        """Which rows each new row sees: all committed ones up to itself, and in the draft its own ancestors.

        ``None`` where plain causal attention says the same. A model with layers of several kinds gets a mask for each.
        """
        kinds = dict.fromkeys(self.windows)
        fed = len(positions)
        if list(kinds) == [None] and (fed == 1 or (past == 0 and not draft)):
            return None
        sees = torch.ones(fed, past + fed, dtype=torch.bool).tril(past)
        if draft:
            sees[fed - len(draft) :, past + fed - len(draft) :] = draft.mask
        at = torch.tensor([*range(past), *positions])
        masks = {}
        for window in kinds:
            near = sees if window is None else sees & (at > at[past:, None] - window)
            masks["full_attention" if window is None else "sliding_attention"] = self._ready(near)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _ready(self, sees: Tensor) -> Tensor:
        """``[1, 1, rows fed, rows]`` as this model's attention reads it: bool for sdpa, else added to the scores."""
        sees = sees[None, None].to(self.device)
        if self.model.config._attn_implementation == "sdpa":
            return sees
        return torch.zeros_like(sees, dtype=self.dtype).masked_fill(~sees, torch.finfo(self.dtype).min)

    # --- Parts and relatives ---

    @property
    def dtype_name(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(name, name)

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def num_own_parameters(self) -> int:
        """Parameters of the layers: embedding and output head apart, which a draft model may share with its target."""
        tables = {self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight}
        return sum(p.numel() for p in self.model.parameters() if p not in tables)

    def layer_skip(self, num_layers: int) -> HFModel:
        """This model's first layers with its final norm and head, as a model of its own on the same weights.

        Raises ``ValueError`` for a number outside 1 ... layers - 1.
        """
        if not 1 <= num_layers < self.num_layers:
            most = self.num_layers - 1
            raise ValueError(f"draft_layers must lie between 1 and {most} for {self.name}, not {num_layers}.")
        model, base = _shallow(self.model), _shallow(self.model.base_model)
        layers = {name: part for name, part in base._modules.items() if isinstance(part, nn.ModuleList)}
        name = next((name for name, part in layers.items() if len(part) == self.num_layers), None)
        if name is None:
            raise ValueError(f"{self.name} has no plain list of layers for layer-skip; choose another drafter.")
        base._modules[name] = layers[name][:num_layers]
        base.config = model.config = copy.copy(self.model.config)
        base.config.num_hidden_layers = num_layers
        model._modules[self.model.base_model_prefix] = base
        twin = copy.copy(self)
        twin.name = f"{self.name}, first {num_layers} layers"
        twin.model, twin.windows = model, self.windows[:num_layers]
        return twin

    def as_draft_of(self, target: HFModel) -> HFModel:
        """This model with logits as wide as the target's, none for an id that the target does not know.

        Raises ``ValueError`` when the two tokenizers mean different text by the same id.
        """
        if not same_tokens(self.table, target.table):
            at = differing_token(self.table, target.table)
            where = "too few ids are shared"
            if at is not None:
                where = f"id {at} is {target.table.text(at)!r} there and {self.table.text(at)!r} here"
            raise ValueError(f"{self.name} cannot draft for {target.name}: their tokenizers differ ({where}).")
        twin = copy.copy(self)
        twin.vocab_size, twin.num_tokens = target.vocab_size, min(self.num_tokens, target.num_tokens)
        return twin


def fit(logits: Tensor, width: int) -> Tensor:
    """``logits`` ``[n, vocab]`` cut or padded with -inf to ``[n, width]``; a copy only where it is padded."""
    missing = width - logits.shape[-1]
    return nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[:, :width]


def _shallow(module: nn.Module) -> Any:
    """A module with the same parts, whose parts can be replaced without touching the original."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def context_length(config: Any, tokenizer: Any) -> int:
    """The most tokens a sequence may have."""
    known = (getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None))
    return min((n for n in known if n and n < 10**9), default=2048)


def all_eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a reply, wherever it is written down."""
    found: set[int] = set()
    for place in (model.generation_config, model.config, tokenizer):
        ids = getattr(place, "eos_token_id", None)
        found |= set(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    return frozenset(found)
