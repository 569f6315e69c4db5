"""The commands of the training pipeline; see the package's docstring for what each one does."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models import trained
from models.fetch import cache_folder, fetch
from models.training.batches import Shards
from models.training.corpus import Corpus, load_corpus
from models.training.data import make
from models.training.evaluate import PROMPTS, load_prompts, write_replies
from models.training.features import FeatureMeta, default_taps, extract, read_meta
from models.training.report import export, from_checkpoint, report
from models.training.target import Target, parts
from models.training.teacher import choose_vocabulary
from models.training.train import DRAFTERS, Plan, Run

WORK = cache_folder() / "training"


def default_target() -> str:
    """The folder of the app's default model, made first where it is not there yet."""
    work = fetch()
    while True:
        try:
            next(work)
        except StopIteration as end:
            return str(end.value)


def load_target(source: str) -> tuple[Any, Any]:
    """(transformers model in fp32, tokenizer) of ``default``, a folder or a hub id."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = default_target() if source == "default" else source
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(source)


def eos_ids(model: Any) -> frozenset[int]:
    ids = model.generation_config.eos_token_id
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


def chat(tokenizer: Any, text: str) -> list[int]:
    """One user message in the chat template, up to where the reply starts; the text itself without a template."""
    if tokenizer.chat_template:
        messages = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)


def data(args: argparse.Namespace) -> None:
    model, tokenizer = load_target(args.target)
    args.work.mkdir(parents=True, exist_ok=True)
    ends, chunks = eos_ids(model), args.work / "data"
    corpus = make(model, tokenizer, chunks, args.chunks, args.chunk_size, args.limit, args.seed, ends)
    corpus.save(args.work / "corpus.npz")
    print(f"{len(corpus.tokens):,} tokens in {len(corpus):,} conversations")


def features(args: argparse.Namespace) -> None:
    corpus = load_corpus(args.work / "corpus.npz")
    model, _ = load_target(args.target)
    taps = tuple(args.taps or default_taps(model.config.num_hidden_layers))
    meta = FeatureMeta(args.name, corpus.digest, taps, model.config.hidden_size, args.shard_size)
    extract(model, corpus, meta, args.work / "features", args.worker, args.workers, args.max_shards)


def taps_of(args: argparse.Namespace, model: Any) -> tuple[int, ...]:
    """The layers whose states the work folder keeps; the default ones where it keeps none yet."""
    folder = args.work / "features"
    return read_meta(folder).taps if folder.exists() else default_taps(model.config.num_hidden_layers)


def heldout(args: argparse.Namespace) -> None:
    write_heldout(args, *load_target(args.target))


def write_heldout(args: argparse.Namespace, model: Any, tokenizer: Any) -> None:
    corpus = args.work / "corpus.npz"
    seen = tokenizer.decode(load_corpus(corpus).tokens.tolist()) if corpus.exists() else ""
    prompts = [(kind, text) for kind, text in load_prompts(args.prompts) if text not in seen]
    print(f"{len(prompts)} held-out prompts (any that the training data contain are left out)")
    tokens = [(kind, chat(tokenizer, text)) for kind, text in prompts]
    args.work.mkdir(parents=True, exist_ok=True)
    write_replies(model, tokens, taps_of(args, model), args.work / "heldout.npz", args.max_new, eos_ids(model))


def open_shards(args: argparse.Namespace, corpus: Corpus, target: Target) -> tuple[Shards, np.ndarray]:
    """The shards of the work folder with their laws, and the draft vocabulary."""
    folder = args.work / "features"
    vocabulary = choose_vocabulary(corpus, read_meta(folder).shard_size, args.vocabulary)
    head = target.head[vocabulary].contiguous()
    laws = args.work / f"laws-{args.vocabulary}"
    return Shards(corpus, folder, laws, vocabulary, head, tokens_only=args.drafter == "tiny"), vocabulary


def train(args: argparse.Namespace) -> None:
    corpus = load_corpus(args.work / "corpus.npz")
    target = parts(load_target(args.target)[0], args.name)
    shards, vocabulary = open_shards(args, corpus, target)
    plan = Plan(**{f.name: getattr(args, f.name) for f in fields(Plan) if getattr(args, f.name) is not None})
    folder = args.work / "runs" / (args.run_name or plan.drafter)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "vocabulary.npy", vocabulary)
    Run(plan, target, shards, folder).run(args.validate_every)


def evaluate(args: argparse.Namespace) -> None:
    model, tokenizer = load_target(args.target)
    if not (args.work / "heldout.npz").exists():
        write_heldout(args, model, tokenizer)
    target = parts(model, args.name)
    kept = [*taps_of(args, model), model.config.num_hidden_layers]
    if args.weights:
        paths = {name: args.weights / f"{name}.safetensors" for name in args.drafters}
        weights = {name: trained.load(p, target.embedding, target.head) for name, p in paths.items() if p.exists()}
    else:
        runs = {name: args.work / "runs" / name for name in args.drafters}
        weights = {name: from_checkpoint(r, target) for name, r in runs.items() if (r / "checkpoint.pt").exists()}
    figures = report(args.work / "heldout.npz", kept, weights, args.k, args.longest)
    for name, row in figures.items():
        classes = " ".join(f"{kind} {f['mean_acceptance_length']:.2f}" for kind, f in row["by_class"].items())
        conditional = " ".join(f"{x:.2f}" for x in row["conditional_per_position"])
        print(f"{name:12} {row['mean_acceptance_length']:.3f}  conditional {conditional}  | {classes}")
    if args.export:
        corpus = load_corpus(args.work / "corpus.npz")
        data = {"corpus": corpus.digest, "tokens": len(corpus.tokens), "conversations": len(corpus)}
        source = args.name if Path(args.target).is_dir() else args.target
        how = f"--target {shlex.quote(source)} --weights models/weights --k {args.k} --longest {args.longest}"
        for name in weights:
            command = f"python -m models.training evaluate {how} --drafters {name}"
            own = {n: figures[n] for n in (name, "combination") if n in figures and (n == name or name == "eagle3")}
            print(export(args.work / "runs" / name, target, own, command, data, args.export))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m models.training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="products in bf16: faster where a CPU has them (AMX)")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of corpus, features and runs")
    parser.add_argument("--name", default="SmolLM2-135M-Instruct", help="the target's name in provenance")
    commands = parser.add_subparsers(dest="command", required=True)

    p = commands.add_parser("data", help="conversations sampled from the target; resumes at the first missing chunk")
    p.set_defaults(run=data)
    p.add_argument("--chunks", type=int, default=40)
    p.add_argument("--chunk-size", type=int, default=96, help="conversations per chunk")
    p.add_argument("--limit", type=int, default=448, help="most tokens of a conversation")
    p.add_argument("--seed", type=int, default=0)

    p = commands.add_parser("features", help="one target pass over the corpus; resumes at the first missing shard")
    p.set_defaults(run=features)
    p.add_argument("--taps", type=int, nargs="*", help="hidden_states indices (default: low, middle, high)")
    p.add_argument("--shard-size", type=int, default=32, help="conversations per shard")
    p.add_argument("--worker", type=int, default=0)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--max-shards", type=int)

    p = commands.add_parser("heldout", help="greedy replies of the target to the held-out prompts, with their states")
    p.set_defaults(run=heldout)

    p = commands.add_parser("train", help="train one drafter; goes on from its checkpoint")
    p.set_defaults(run=train)
    p.add_argument("--drafter", choices=DRAFTERS, required=True)
    p.add_argument("--vocabulary", type=int, default=8192, help="draft vocabulary")
    p.add_argument("--validate-every", type=int, default=50)
    p.add_argument("--run-name")
    for f in fields(Plan)[1:]:
        p.add_argument(f"--{f.name.replace('_', '-')}", type=type(f.default), help=f"default {f.default}")

    p = commands.add_parser("evaluate", help="held-out acceptance of the runs, or of the weights in a folder")
    p.set_defaults(run=evaluate)
    p.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=DRAFTERS, help="default: all there are")
    p.add_argument("--weights", type=Path, help="folder of exported weights instead of the runs")
    p.add_argument("--export", type=Path, help="folder to write weights and provenance to")
    p.add_argument("--json", type=Path)
    p.add_argument("--k", type=int, default=4)
    p.add_argument("--longest", type=int, default=4, help="longest match of the combination's n-gram")

    for command in ("heldout", "evaluate"):
        commands.choices[command].add_argument("--prompts", type=Path, default=PROMPTS)
        commands.choices[command].add_argument("--max-new", type=int, default=128, help="tokens of a held-out reply")

    for command in ("data", "features", "heldout", "train", "evaluate"):
        commands.choices[command].add_argument("--target", required=True, help="default, folder or hub id")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    # without its cache: cast weights would be kept for as long as this block lasts, and training changes them
    with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16, cache_enabled=False):
        args.run(args)


if __name__ == "__main__":
    main()
