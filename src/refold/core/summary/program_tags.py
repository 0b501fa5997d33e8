"""Names of the blocks between tags that clients are known to add to what a user types.

Nothing in a request says who wrote a block, and people write tags too: `<context>`, `<output_format>`, a component of their
own. A name is listed only if a client in use writes such blocks itself, and if people hardly give it to a text of their own: a block
that is left out of the task by mistake is lost to the model, one that is kept by mistake only takes room. So the wrappers around
what the user typed (`<user_query>`, `<userRequest>`, `<command-args>`) are not listed, nor common words (`<context>`, `<env>`,
`<user_info>`, `<file_content>`).
"""

from __future__ import annotations

from itertools import chain

_BY_CLIENT: dict[str, tuple[str, ...]] = {
    "Claude Code: reminders, output of commands that run on the user's machine, hooks, the editor, other agents": (
        "system-reminder",
        "local-command-caveat",
        "local-command-stdout",
        "local-command-stderr",
        "bash-stdout",
        "bash-stderr",
        "command-message",
        "user-prompt-submit-hook",
        "session-start-hook",
        "ide_opened_file",
        "ide_selection",
        "ide_diagnostics",
        "new-diagnostics",
        "task-notification",
        "teammate-message",
        "available-deferred-tools",
    ),
    "Codex: its environment, the AGENTS.md of the project, and what became of a turn": (
        "environment_context",
        "user_instructions",
        "turn_aborted",
        "subagent_notification",
        "recommended_plugins",
    ),
    "Cline, Roo Code and Kilo Code: open files, terminals and the time, at the end of every message": (
        "environment_details",
    ),
    "Cursor: reminders, files that are open or attached, the tree of the project, rules from its settings": (
        "system_reminder",
        "open_and_recently_viewed_files",
        "attached_files",
        "project_layout",
        "always_applied_workspace_rules",
        "agent_requestable_workspace_rules",
        "agent_transcripts",
        "mcp_file_system",
    ),
    "Copilot: the machine, the workspace, the editor, and reminders of its own": (
        "environment_info",
        "workspace_info",
        "editorcontext",
        "reminderinstructions",
    ),
    "Gemini CLI: the workspace at the start of a session, and the output of hooks": (
        "session_context",
        "hook_context",
    ),
    "OpenHands: hosts, directories and the instructions of the repository": (
        "runtime_information",
        "repository_info",
        "repository_instructions",
    ),
}

PROGRAM_TAGS = frozenset(chain.from_iterable(_BY_CLIENT.values()))
"""In lower case."""
