"""Summaries without a model: what is taken out of a conversation word for word, and by which rules.

One idea: nothing here writes. A digest is made of pieces of the messages it stands for, each with the handle that opens its
original, so it can be incomplete but never wrong. Messages are split and indexed as they arrive (`facts`); when a range of
them has to go, the pieces that say most of what would be lost are kept (`extract`), next to a ledger of files, rules, errors,
decisions and open tasks (`ledger`).
"""
