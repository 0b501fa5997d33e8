-- Write a compaction down before work on it begins, unless it is there.
INSERT INTO compaction (
    owner, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
) VALUES (
    :owner, :id, :branch, 0, :kind, 'planned', :base, :session, :cut, :size, :reason, :moment, :recipe,
    :before, :after, :edits, :holder, :until, :attempts, :error, :at, :shown
)
ON CONFLICT (owner, id) DO NOTHING
