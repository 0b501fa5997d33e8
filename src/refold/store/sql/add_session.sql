-- Open a session.
INSERT INTO session (
    owner, id, conversation, branch, first, kind, parent, carries, summary, target, tokens, at
) VALUES (
    :owner, :id, :conversation, :branch, :first, :kind, :parent, :carries, :summary, :target, :tokens, :at
)
