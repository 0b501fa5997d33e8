"""Every regular expression of the source and every function that reads text from outside, with worst cases
for each.
"""
