"""Training of drafters for one target: make data with it, store its features, train, evaluate, write weights.

    python -m models.training data      --target T                      conversations sampled from the target itself
    python -m models.training features  --target T                      one target pass over them, states on disk
    python -m models.training heldout   --target T                      the target's greedy replies to held-out prompts
    python -m models.training train     --target T --drafter eagle3     on the shards there are; new ones are taken in
    python -m models.training evaluate  --target T --export models/weights

Drafters are ``eagle3``, ``medusa``, ``tiny``, EAGLE's first version ``eagle``, DeepSeek's module ``mtp``, and EAGLE-3
with a part taken away: ``eagle3_blind`` (tokens only), ``eagle3_noroll`` (no training-time test), ``eagle3_top`` (last
layer only), to be set beside ``eagle3_short``, which has everything and their budget.

``T`` is ``default``, a folder or a hub id; ``--work`` before the command names the folder of corpus, features and runs,
``--name`` the target in the provenance. Every command may be killed at any moment: the same command goes on where it
was. A run may be lengthened with a larger ``--steps``. ``evaluate --weights models/weights`` needs none of the others.
Features take 8 * dim bytes per token; ``--worker 0 --workers 2`` and ``--worker 1 --workers 2`` share the work between
two processes, each with one thread. On a processor with bf16 matrix instructions ``--bf16`` before the command makes
features and training two to three times faster.
"""
