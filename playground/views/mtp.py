"""Multi-token prediction as tables: the loss by depth, the terms of a draft step, the window over the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from playground.engine.mtp import DepthLoss
from playground.views import html, pricing, tokens, verification
from playground.views.html import Text, number

NUM_SHOWN = 24  # last tokens of the text
Texts = Mapping[int, str]
FROZEN = (
    "DeepSeek trained the module together with the model. Here the target is frozen and the module was trained on the "
    "target's own text afterwards, against its law over the draft vocabulary. The loss above is taken over all tokens "
    "of the text, template and prompt included; the reply was chosen by the target itself, so depth 0 is low there."
)


def objective(result: Mapping[str, Any]) -> Markup:
    """The loss of each depth and what they come to with λ."""
    rows: list[list[Text]] = [
        ["depth 0: the model itself", number(result["loss_depth_0"], 3), "1"],
        ["depth 1: the module", number(result["loss_depth_1"], 3), f"λ = {number(result['loss_weight'])}"],
        [Markup("<b>the objective</b>"), number(result["objective"], 3), ""],
    ]
    return pricing.figures(["", "nats per token", "weight"], rows, "Loss by depth")


def losses(main: DepthLoss, deeper: DepthLoss, texts: Texts) -> Markup:
    """The last tokens of the text with the loss of both depths as bars on one scale."""
    rows = list(zip(main.tokens[1:], main.losses[1:], deeper.losses, strict=False))[-NUM_SHOWN:]
    most = max((max(a, b) for _, a, b in rows), default=1.0)
    cells: list[list[Text]] = [
        [tokens.chip(verification.text_of(texts, token)), _bar(a, most, "c-0"), _bar(b, most, "c-1")]
        for token, a, b in rows
    ]
    return html.table(["token", "depth 0: next token", "depth 1: the one after"], cells, "Loss token by token")


def _bar(value: float, most: float, look: str) -> Markup:
    width = html.percent(value, most)
    return Markup(
        '<div class="bar" style="min-width:104px"><span class="track"><i class="{}" style="width:{}%"></i></span>'
        "<span>{}</span></div>"
    ).format(look, width, number(value))


def terms(found: Mapping[str, Any]) -> Markup:
    """Every part of a draft step, and its share of a step of the target."""
    rows = [[name, f"{size / 1e6:,.2f} M"] for name, size in found["terms"].items()]
    rows += [
        [
            Markup("<b>the draft step</b>"),
            Markup("<b>{}</b>").format(f"{found['mtp_active_parameters_with_head'] / 1e6:,.1f} M"),
        ],
        ["without the LM head", f"{found['mtp_active_parameters'] / 1e6:,.1f} M"],
    ]
    whole = found["mtp_active_parameters_with_head"] / found["draft_cost"]
    step = [
        ["active per token, with the LM head", f"{found['active_parameters'] / 1e9:,.2f} B"],
        ["with the input embedding too", f"{whole / 1e9:,.2f} B"],
        ["all parameters", f"{found['total_parameters'] / 1e9:,.2f} B"],
        ["c: draft step by step, in parameters", f"{found['draft_cost']:.4f}"],
        ["c by time at batch 1", f"{found['draft_cost_priced']:.4f}"],
        [f"(1 + p) / (1 + c), p = {found['acceptance']:.3f}", f"{found['speedup']:.3f}×"],
    ]
    return html.columns(
        pricing.figures(["draft step", "parameters"], rows, "Terms of a draft step"),
        pricing.figures([found["target"], ""], step, "A step of the target"),
    )


def acceptance(result: Mapping[str, Any]) -> Markup:
    """The second token's acceptance here, on record, and as published."""
    low, high = result["published_acceptance"]
    recorded = result["recorded"]
    visits = (
        "" if recorded["token_visits"] is None else f"held-out prompts; trained on {recorded['token_visits']:,} visits"
    )
    rows = [
        ["this run", number(result["second_token_acceptance"]), html.count(result["num_drafts"], "draft")],
        ["on record", number(recorded["second_token_acceptance"]), visits],
        ["DeepSeek V3, published", f"{low:.2f} to {high:.2f}", "trained with the model on 14.8 trillion tokens"],
    ]
    return html.table(["", "accepted", ""], rows, "Acceptance of the second token")


def window(found: Mapping[str, Any]) -> Markup:
    """By batch: experts reached, cost of the check, speed."""
    experts = found["experts_read_by_batch"]
    rows = []
    for batch, cost in found["verify_cost_by_batch"].items():
        speed = found["speedup_by_batch"][batch]
        reached = [f"{experts[batch][0]:.0f} → {experts[batch][1]:.0f}"] if experts else []
        rows.append([f"{int(batch):,}", *reached, f"{cost:.2f}×", "does not fit" if speed is None else f"{speed:.2f}×"])
    head = ["batch", *(["experts of a layer read"] if experts else []), "the check", "speed"]
    return pricing.figures(head, rows, "Window over the batch")


def assumed(found: Mapping[str, Any]) -> str:
    profile = found["profile"].replace("_", " ")
    return f"priced: {found['target']}, {found['hardware']}, {profile}, context {found['context']:,}"


def window_says(found: Mapping[str, Any]) -> str:
    """Where the speed comes near what the simple formula says."""
    speeds = {int(b): s for b, s in found["speedup_by_batch"].items() if s is not None}
    if not speeds:
        return "Not one sequence of this context fits in memory."
    near = [b for b, s in speeds.items() if s >= 0.97 * found["speedup"]]
    said = f"At batch {min(speeds):,} the gain is {speeds[min(speeds)]:.2f}×, not {found['speedup']:.2f}×"
    if not near:
        return f"{said}; no batch that fits comes within 3 % of that."
    return f"{said}; it comes within 3 % of that at batches of {min(near):,} to {max(near):,}."
