"""Search: the words of texts, the query language, the inflected forms of words, and the ranking by words and by vectors.

Nothing of it is stored. An index holds the plain words of messages; stop words, inflected forms and typing errors are a matter of
the query. So every store ranks in the same way, a rule that changes needs no new index, and an append pays for none of it.
"""
