"""Variants of a drafting head as tables: by position, change by change, budgets, and the price beside a draft model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from playground.engine.face_to_face import SideBySide
from playground.engine.head_report import WITH, WITHOUT
from playground.views import html, pricing
from playground.views.html import Text, number

Variants = Mapping[str, Mapping[str, Any]]
ABOUT = {
    "eagle3": "three layers fused, unrolled in training; trained longest",
    "eagle3_short": "EAGLE-3 at the budget of the others",
    "eagle3_blind": "the same without the target's states",
    "eagle3_noroll": "the same without training-time test",
    "eagle3_top": "the same with the last layer alone",
    "eagle": "the first version: last layer, loss on states and tokens",
    "mtp": "last layer, loss on tokens alone: DeepSeek's module",
    "tiny": "a language model of two layers that reads tokens only",
}
FEATURE = 0.08  # of first guesses: less would say that the states are not used


def longest(moment: SideBySide) -> str:
    """Whose draft stands longest, as the end of a sentence."""
    most = max(chain.num_accepted for chain in moment.chains)
    if not most:
        return "no draft stands."
    names = [chain.name for chain in moment.chains if chain.num_accepted == most]
    others = f" and {html.count(len(names) - 1, 'other')}" if names[1:] else ""
    return f"the longest draft that stands has {html.count(most, 'token')}: {names[0]}{others}."


def positions(variants: Variants, names: Sequence[str]) -> Markup:
    """Conditional acceptance by position and the mean length; in brackets what was measured on this prompt."""
    shown = {name: variants[name] for name in names if name in variants}
    depth = max(
        (len(v["conditional_per_position"] or v["here"]["conditional_per_position"]) for v in shown.values()), default=0
    )
    rows: list[list[Text]] = []
    for name, v in shown.items():
        cells = [
            _pair(_at(v["conditional_per_position"], i), _at(v["here"]["conditional_per_position"], i))
            for i in range(depth)
        ]
        length = _pair(v["mean_acceptance_length"], v["here"]["mean_acceptance_length"])
        rows.append([name, *cells, length])
    head = ["head", *(f"+{i + 1}" for i in range(depth)), "tokens per pass"]
    return pricing.figures(head, rows, "Conditional acceptance by position")


def _at(values: Sequence[float | None] | None, i: int) -> float | None:
    return values[i] if values and i < len(values) else None


def _pair(recorded: float | None, here: float | None) -> str:
    return number(recorded) + ("" if here is None else f" ({number(here)})")


def changes(found: Sequence[Mapping[str, Any]]) -> Markup:
    """Each change with the pair of heads that differ in it, and whether this target shows it."""
    rows: list[list[Text]] = []
    for each in found:
        rows.append(
            [each["change"], f"{each['before']} → {each['after']}", f"+{each['position']}",
             number(each["acceptance_before"]), number(each["acceptance_after"]), _signed(each["mean_length_gain"]),
             verdict(each)]
        )  # fmt: skip
    head = ["change", "heads", "position", "without", "with", "tokens per pass", "on this target"]
    return pricing.figures(head, rows, "Effect of each change")


def verdict(each: Mapping[str, Any]) -> str:
    """Whether a change shows, with what chance alone could move."""
    gain, noise = each["gain"], each["noise"]
    if gain is None or noise is None:
        return "no record"
    word = "shows" if gain > noise else "the other way" if gain < -noise else "does not show"
    return f"{word}: {_signed(gain)} ± {number(noise)}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")


def budgets(variants: Variants) -> Markup:
    rows: list[list[Text | float | int | None]] = [
        [name, v["token_visits"], v["parameters"], ABOUT.get(name, "")] for name, v in variants.items()
    ]
    return html.table(["head", "token visits", "parameters", ""], rows, "Training budgets")


def feature_says(result: Mapping[str, Any]) -> str:
    """The feature's effect in a sentence."""
    effect = result["feature_effect"]
    if effect is None:
        return "Without a record of both heads the effect of the feature is not known here."
    with_it, without = result["first_position_with_feature"], result["first_position_without_feature"]
    said = (
        f"With the target's states the first guess is right in {100 * with_it:.0f} % of the held-out passes, "
        f"without them in {100 * without:.0f} %: the same head, the same data, the same number of token visits."
    )
    return said if effect >= FEATURE else said + curves_say(result["variants"])


def curves_say(variants: Variants) -> str:
    """What the learning curves of both heads add: their gap on the validation conversations, before and after."""
    pair = [variants[name]["learning_curve"] or [] for name in (WITH, WITHOUT)]
    if not all(pair):
        return ""
    before, after = ([curve[i]["validation"][0] for curve in pair] for i in (0, -1))
    return (
        f" The learning curves say why it is not more: on the validation conversations, which are sampled, the head "
        f"with the states went from {100 * before[0]:.0f} to {100 * after[0]:.0f} % in these few visits and the blind "
        f"one from {100 * before[1]:.0f} to {100 * after[1]:.0f} %; neither is level yet."
    )


def beside(variants: Variants) -> Markup:
    """The head and an independent language model of like size: parameters beside acceptance."""
    names = [name for name in ("eagle3", WITH, WITHOUT, "tiny") if name in variants]
    rows: list[list[Text]] = []
    for name in names:
        v = variants[name]
        size = "–" if v["parameters"] is None else f"{v['parameters'] / 1e6:.1f} M"
        length = _pair(v["mean_acceptance_length"], v["here"]["mean_acceptance_length"])
        one = _pair(_at(v["acceptance_per_position"], 0), _at(v["here"]["acceptance_per_position"], 0))
        visits = "–" if v["token_visits"] is None else f"{v['token_visits']:,}"
        rows.append([name, size, visits, one, length])
    return html.table(
        ["drafter", "own parameters", "token visits", "first guess", "tokens per pass"], rows, "Beside a model"
    )


def price(found: Mapping[str, Any]) -> Markup:
    """What the head is made of and what a drafted token costs, beside a draft model."""
    parts = [[name, f"{size / 1e6:,.1f} M"] for name, size in found["parts"].items()]
    parts.append(["together", f"{found['parameters_with_head'] / 1e6:,.1f} M"])
    parts.append(["of these its own", f"{found['parameters'] / 1e6:,.1f} M"])
    left = pricing.figures(["EAGLE head", "parameters"], parts, "Parts of the head")
    costs = [
        ["EAGLE head", f"{100 * found['draft_cost']:.2f} %", _share(found["equal_acceptance"])],
        ["with 32k draft vocabulary", f"{100 * found['draft_cost_32k']:.2f} %", _share(found["equal_acceptance_32k"])],
        [found["draft_model"], f"{100 * found['draft_model_cost']:.2f} %", _share(found["draft_model_acceptance"])],
    ]
    head = ["drafter", "of a pass per token", f"α for {found['draft_model_speedup']:.2f}×"]
    return html.columns(left, pricing.figures(head, costs, "Costs and equal acceptance"))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def assumed(found: Mapping[str, Any]) -> str:
    return (
        f"priced: {found['hardware']}, {found['profile'].replace('_', ' ')}, context {found['context']:,}, batch 1, "
        f"k = {found['k']}"
    )


def claim(result: Mapping[str, Any]) -> str:
    """The claim that a head beats an 8B model, taken apart."""
    p, v = result["priced"], result["variants"]
    ours, model = (v.get(name, {}).get("mean_acceptance_length") for name in ("eagle3", "tiny"))
    measured = (
        f"Here the head reaches {ours:.2f} tokens per pass and a language model of like size {model:.2f}. "
        if ours and model
        else ""
    )
    if p["equal_acceptance_32k"] is None:
        return measured + f"No acceptance of the head reaches the speed of {p['draft_model']} with these numbers."
    return measured + (
        f"Speed does not ask that it beat {p['draft_model']} at acceptance: at α = {p['draft_model_acceptance']:.2f} "
        f"that model gives {p['draft_model_speedup']:.2f}× at batch 1, and the head gives as much at "
        f"α = {p['equal_acceptance_32k']:.2f}. That it accepts more than an 8B model is a claim about the head of its "
        f"paper; this page cannot measure it."
    )
