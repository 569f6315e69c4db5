"""Training of drafters for one target: make data with it, store its features, train, evaluate, write weights.

    python -m models.training data      sample conversations from the target itself
    python -m models.training features  one target pass over them; hidden states go to disk in shards
    python -m models.training train     a drafter on the shards that are there; more shards are picked up as they come
    python -m models.training evaluate  acceptance on held-out prompts, greedy, without running the target again
    python -m models.training export    bf16 weights and a provenance file

Every command may be killed at any moment and started again with the same arguments: it goes on where it was.
"""
