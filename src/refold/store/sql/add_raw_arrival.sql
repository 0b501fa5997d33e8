-- Note that a message which a fork shares is shown there as it came.
INSERT INTO compaction (
    owner, id, branch, number, kind, state, base, session, cut, size, reason, moment, recipe,
    before, after, edits, holder, until, attempts, error, at, shown
) VALUES (
    :owner, :id, :branch, 0, 'arrival', 'undone', :base, :session, :cut, :size, :reason, :moment, :recipe,
    :before, :after, :edits, :holder, :until, :attempts, :error, :at, :shown
)
