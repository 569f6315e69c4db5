"""The commands of the training pipeline; see the package's docstring for what each one does."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import torch

CACHE = Path.home() / ".cache" / "decoding-playground" / "training"


def load_target(name: str):
    """(model in eval mode, tokenizer) from a folder or a hub id."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(name)


def features(args: argparse.Namespace) -> None:
    from models.training.corpus import load_corpus
    from models.training.features import FeatureMeta, default_taps, extract

    corpus = load_corpus(args.work / "corpus.npz")
    model, _ = load_target(args.target)
    taps = tuple(args.taps or default_taps(model.config.num_hidden_layers))
    meta = FeatureMeta(args.name, corpus.digest, taps, model.config.hidden_size, args.shard_size)
    extract(model, corpus, meta, args.work / "features", args.worker, args.workers, args.max_shards)


def train(args: argparse.Namespace) -> None:
    import numpy as np

    from models.training.batches import Shards
    from models.training.corpus import load_corpus
    from models.training.features import read_meta
    from models.training.target import parts
    from models.training.teacher import choose_vocabulary
    from models.training.train import Plan, Run

    corpus = load_corpus(args.work / "corpus.npz")
    target = parts(load_target(args.target)[0], args.name)
    vocabulary = choose_vocabulary(corpus, read_meta(args.work / "features").shard_size, args.vocabulary)
    laws = args.work / f"laws-{args.vocabulary}"
    shards = Shards(corpus, args.work / "features", laws, vocabulary, target.head[vocabulary].contiguous())
    plan = Plan(**{f.name: getattr(args, f.name) for f in fields(Plan) if getattr(args, f.name) is not None})
    folder = args.work / "runs" / (args.run_name or plan.drafter)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "vocabulary.npy", vocabulary)
    Run(plan, target, shards, folder).run(args.validate_every)


def main(argv: list[str] | None = None) -> None:
    from models.training.train import DRAFTERS, Plan

    parser = argparse.ArgumentParser(prog="python -m models.training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=CACHE, help="folder of corpus, features and runs")
    parser.add_argument("--name", default="SmolLM2-135M-Instruct", help="the target's name in provenance")
    commands = parser.add_subparsers(dest="command", required=True)

    p = commands.add_parser("features")
    p.set_defaults(run=features)
    p.add_argument("--target", required=True)
    p.add_argument("--taps", type=int, nargs="*")
    p.add_argument("--shard-size", type=int, default=32)
    p.add_argument("--worker", type=int, default=0)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--max-shards", type=int)

    p = commands.add_parser("train")
    p.set_defaults(run=train)
    p.add_argument("--target", required=True)
    p.add_argument("--drafter", choices=DRAFTERS, required=True)
    p.add_argument("--vocabulary", type=int, default=8192)
    p.add_argument("--validate-every", type=int, default=50)
    p.add_argument("--run-name")
    for f in fields(Plan)[1:]:
        p.add_argument(f"--{f.name.replace('_', '-')}", type=type(f.default))

    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    args.run(args)


if __name__ == "__main__":
    main()
