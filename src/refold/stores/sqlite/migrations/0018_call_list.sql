-- One index lists the calls of a conversation in their order, and holds the columns of their cost: every call wrote to two.
CREATE INDEX call_list ON call (owner, conversation, ordinal, kind, dollars);
DROP INDEX call_of_conversation;
DROP INDEX call_spent;
