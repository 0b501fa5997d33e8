"""The web page: what fills each window, what was done to it and why, what it saved and cost, and the acts of a user.

Every view is rendered on the server (Jinja2, autoescape) from plain data, and the same data is its `.json` twin. The page decides
nothing: it calls the engine, and a `Workspace` opens conversations with the settings that they have elsewhere. The gateway
mounts it at `/`, and `refold dashboard` serves it for a store without a gateway; both put the gateway's access check before it.

    app            routes, sign-in and its gate, CSRF check, templates, JSON twins, static files, the event stream of a page
    workspace      what the page shows and acts on, for one owner: the protocols, and the one over a store
    browser_access sessions of browsers: the cookie, and the tokens of acts
    home           what needs attention, today's effect, the list of conversations, search
    conversation   one conversation: the window over time, compactions, lineage
    acts           preview, compact, undo, rerun, pins, sessions, delete
    replay_jobs    replays of a stored conversation under other presets
    operations     settings with their origin and range, effect in numbers, operations for an admin
    text           filters of the templates
"""

from __future__ import annotations
