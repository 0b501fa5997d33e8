-- Put a compaction into effect, once: one that was planned or given up before takes its row; one that was in effect never changes.
INSERT INTO compaction (
    owner, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
) VALUES (
    :owner, :id, :branch,
    (SELECT coalesce(max(number), 0) + 1 FROM compaction WHERE owner = :owner AND branch = :branch),
    :kind, 'installed', :base, :session, :cut, :size, :reason, :moment, :recipe,
    :before, :after, :edits, :holder, :until, :attempts, :error, :at, :shown
)
ON CONFLICT (owner, id) DO UPDATE SET
    number = excluded.number, kind = excluded.kind, state = excluded.state, base = excluded.base,
    session = excluded.session, cut = excluded.cut, size = excluded.size, reason = excluded.reason,
    moment = excluded.moment, recipe = excluded.recipe, before = excluded.before, after = excluded.after,
    edits = excluded.edits, holder = excluded.holder, until = excluded.until, attempts = excluded.attempts,
    error = excluded.error, at = excluded.at, shown = excluded.shown
WHERE compaction.number = 0 AND compaction.branch = excluded.branch
RETURNING number
