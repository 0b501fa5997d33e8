"""Kept %: the share of a history's worth to a real model that a context keeps.

At a turn of a recorded conversation a small model reads the context that an engine would have sent there, and
tells how likely the reply is that was really given (teacher-forced, the first 512 tokens).

    kept % = 100 * (LL - LL of lower) / (LL of full - LL of lower)        LL: sums of log-likelihoods, in nats

`full` is the whole history; `lower` is the system prompt, the first user message and the last unit. So 100 is
as good as sending everything, and 0 is as good as having forgotten everything. Above 100 is possible.

    recordings ─▶ contexts ─▶ contexts.npz ─▶ score ─▶ results_000.npz ─▶ table
                  no GPU      token ids        GPU     log-probabilities  kept %, intervals

`points` chooses the turns, `engines` are presets, baselines and the two bounds behind the adapter of
`refold.testing`, `chat_format` writes a context in the model's own chat format, `run_files` has the two files,
`scores` and `model` read them with torch, and `table` does the arithmetic. docs/evaluation.md has the
cautions.
"""
