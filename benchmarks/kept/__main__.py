"""Kept %: how much of a history's worth to a real model do the contexts of an engine keep?

    python -m benchmarks.kept contexts RUN --recordings transcripts.jsonl.gz --weights model.gguf --engine refold
    python -m benchmarks.kept score RUN --weights model.gguf          on a machine with a CUDA GPU
    python -m benchmarks.kept table RUN --against refold

RUN is a folder: `contexts` writes contexts.npz into it, `score` reads that and writes results_000.npz, `table`
reads both. Only `score` needs a GPU, and it needs no recordings: take contexts.npz there and the results back.
Install `.[kept]`. Weights: Qwen2.5-Coder-1.5B-Instruct in GGUF (Q4_K_M) is what the figures of
docs/evaluation.md were made with; another Qwen 2 or 2.5 gives other figures.

A later run needs only the new engine, at the same points:

    python -m benchmarks.kept contexts NEW --points-of RUN/contexts.npz --no-bounds --engine trial=mymodule:Engine ...
    python -m benchmarks.kept table RUN NEW --against refold
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from refold.model.errors import RefoldError

CONTEXTS = "contexts.npz"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.check(options)  # before the imports, which take seconds
        return int(options.act(options))
    except (ValueError, OSError, ModuleNotFoundError) as error:
        return _complain(
            str(error), "pip install '.[kept]'" if isinstance(error, ModuleNotFoundError) else ""
        )
    except RefoldError as error:
        return _complain(error.message, error.hint)


def _complain(text: str, hint: str) -> int:
    sys.stderr.write(f"error: {text}\n" + (f"hint: {hint}\n" if hint else ""))
    return 1


def _check_contexts(options: argparse.Namespace) -> None:
    _need("recordings", options.recordings)
    _need("weights", options.weights)
    if options.points_of:
        _need("points", options.points_of)
    if not options.engine and options.no_bounds:
        raise ValueError("nothing to write: give an --engine, or leave out --no-bounds")
    for name in ("points", "per_recording", "jobs"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} cannot be {value}: give a number of at least 1")
    if any(window < 1 for window in options.window):
        raise ValueError("a --window has at least 1 token")


def _check_score(options: argparse.Namespace) -> None:
    if not options.tiny and options.weights is None:
        raise ValueError("give --weights, or --tiny to try it")
    if not options.tiny:
        _need("weights", options.weights)
    _need("contexts", options.run / CONTEXTS)


def _check_table(options: argparse.Namespace) -> None:
    for run in options.runs:
        _need("contexts", run / CONTEXTS)


def _need(name: str, path: Path) -> None:
    if not path.exists():
        raise ValueError(f"there are no {name} at {path}")


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.kept", description=__doc__, formatter_class=raw)
    verbs = parser.add_subparsers(required=True, metavar="contexts | score | table")
    shown = argparse.ArgumentDefaultsHelpFormatter

    verb = verbs.add_parser(
        "contexts",
        help="choose points, and write what each engine would have sent there",
        description="Choose points of recordings, play every recording up to them under each engine, and write the contexts "
        "as token ids to RUN/contexts.npz. Needs no GPU.",
        formatter_class=shown,
    )
    verb.add_argument("run", type=Path, help="the folder to write into")
    verb.add_argument(
        "--recordings", type=Path, required=True, help="a file or a folder that `refold replay` reads"
    )
    verb.add_argument(
        "--weights", type=Path, required=True, help="the GGUF file: its tokenizer and chat format are used"
    )
    verb.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="[NAME=]ENGINE",
        help="a preset, a baseline of the replay by its name, or module:Class with start, add and context; repeat it",
    )
    verb.add_argument(
        "--window", type=int, action="append", default=[], help="repeat it; 4000 and 8000 if not given"
    )
    verb.add_argument(
        "--tools", action="store_true", help="count the tools as part of the window; a replay does not"
    )
    verb.add_argument(
        "--no-bounds",
        action="store_true",
        help="without `full` and `lower`, if another run of the same points has them",
    )
    verb.add_argument(
        "--points-of",
        type=Path,
        metavar="NPZ",
        help="the points of another contexts.npz, instead of choosing",
    )
    verb.add_argument("--points", type=int, help="points at most; 300 if they are chosen")
    verb.add_argument("--per-recording", type=int, default=10, help="points of one recording at most")
    verb.add_argument("--seed", type=int, default=1)
    verb.add_argument("--jobs", type=int, default=1, help="processes that play recordings")
    verb.set_defaults(act=_contexts, check=_check_contexts)

    verb = verbs.add_parser(
        "score",
        help="log-probabilities of the recorded replies after each context",
        description="Let the model read every context of RUN/contexts.npz, and write the log-probability of each token of the "
        "recorded reply to RUN/results_*.npz. Needs a CUDA GPU. Ends with status 3 if --seconds were over before all was "
        "scored: the same command goes on from there.",
        formatter_class=shown,
    )
    verb.add_argument(
        "run", type=Path, help="the folder with contexts.npz; what its results have is not scored again"
    )
    verb.add_argument("--weights", type=Path, help="the GGUF file")
    verb.add_argument(
        "--tiny",
        action="store_true",
        help="random weights instead, to try it without a GPU; the figures mean nothing",
    )
    verb.add_argument("--out", type=Path, help="another folder for the results; the run if not given")
    verb.add_argument("--device", default="cuda")
    verb.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    verb.add_argument(
        "--seconds", type=float, default=520, help="begin no further block of points after them"
    )
    verb.add_argument("--batch-tokens", type=int, default=65_536)
    verb.add_argument("--first", type=int, default=0, metavar="N", help="only the first points; 0 for all")
    verb.set_defaults(act=_score, check=_check_score)

    verb = verbs.add_parser(
        "table",
        help="kept %% with intervals, in Markdown or JSON",
        description="Compare the engines of one or more scored runs over the same points: nats lost for each reply, and kept %% "
        "with a bootstrap interval over recordings.",
        formatter_class=shown,
    )
    verb.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="runs over the same points; later ones count where both have a context",
    )
    verb.add_argument(
        "--against", default="refold", metavar="NAME", help="the engine that the others are compared with"
    )
    verb.add_argument("--json", action="store_true")
    verb.set_defaults(act=_table, check=_check_table)
    return parser


def _contexts(options: argparse.Namespace) -> int:
    from benchmarks.kept.chat_format import read_gguf
    from benchmarks.kept.contexts import Writer, chosen_points, points_named, rendered
    from benchmarks.kept.engines import named
    from benchmarks.kept.points import Limits, talk_of
    from benchmarks.kept.run_files import point_ids, write_contexts
    from refold.replay import read_recordings

    engines = dict(named(engine) for engine in options.engine)
    limits = Limits(tuple(options.window)) if options.window else Limits()
    talks = {recording.id: talk_of(recording) for recording in read_recordings(options.recordings)}
    writer = Writer(*read_gguf(options.weights))
    if options.points_of:
        points = points_named(point_ids(options.points_of), talks, limits)[: options.points]
    else:
        settings = {
            "seed": options.seed,
            "most": options.points or 300,
            "per_recording": options.per_recording,
        }
        points = chosen_points(talks.values(), writer, limits, **settings)
    if not points:
        raise ValueError("no history is longer than every window and short enough for the model")
    contexts, faults = rendered(
        points,
        talks,
        writer,
        engines,
        limits.windows,
        bounds=not options.no_bounds,
        tools=options.tools,
        jobs=options.jobs,
    )
    written = write_contexts(options.run, contexts)
    tokens = sum(contexts.length(point, name) for point in contexts.points for name in point.ctx)
    print(
        f"{len(points)} points of {len({point.recording for point in points})} recordings, "
        f"{sum(len(point.ctx) for point in contexts.points)} contexts, {tokens / 1e6:.1f} M tokens: {written}"
    )
    for fault, count in sorted(faults.items()):
        print(f"{fault}: {count}")
    return 0


def _score(options: argparse.Namespace) -> int:
    from benchmarks.kept.run_files import next_results, read_contexts, read_results
    from benchmarks.kept.scores import check_batches, score_run

    contexts = read_contexts(options.run)
    contexts = contexts._replace(points=contexts.points[: options.first or None])
    from benchmarks.kept import model as torch_model

    began = monotonic()
    if options.tiny:
        words = 1 + max(int(ids.max()) for ids in [*contexts.segments, contexts.header] if len(ids))
        words = max(words, 1 + max(max(point.target) for point in contexts.points))
        model = torch_model.tiny(words, options.device)
    else:
        model = torch_model.load(options.weights, options.device, options.dtype)
    print(f"{model.about}; ready after {monotonic() - began:.0f} s", flush=True)
    check = check_batches(model, contexts)
    if check:
        print(
            f"{check.sequences} sequences alone and in batches: {check.worst:.4f} nats at most between tokens, "
            f"sums {check.alone:.2f} and {check.batched:.2f}",
            flush=True,
        )
    out = options.out or options.run
    out.mkdir(parents=True, exist_ok=True)
    is_whole = score_run(
        model,
        contexts,
        next_results(out),
        read_results(dict.fromkeys([options.run, out])),
        seconds=options.seconds,
        tokens=options.batch_tokens,
        say=lambda text: print(text, flush=True),
    )
    return 0 if is_whole else 3


def _table(options: argparse.Namespace) -> int:
    from benchmarks.kept.table import read_runs, render, tabulate

    parts = tabulate(read_runs(options.runs), options.against)
    if not parts:
        raise ValueError("no point has results for `full`, `lower` and an engine")
    if options.json:
        print(
            json.dumps(
                [{**part._asdict(), "rows": [row._asdict() for row in part.rows]} for part in parts], indent=1
            )
        )
    else:
        print(render(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
