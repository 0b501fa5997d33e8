"""Queries that somebody may type and no search may fail on; each door has a test with all of them."""

BAD_QUERIES = [
    "the of and",
    "ferry " * 2_000,
    "x" * 10_240,
    'ferry AND (leave OR "',
    "NEAR(ferry leave, 2) ^ferry {ferry}: ferry* -",
    "ferry:* & !leave | <2>",
    "fer* %erry _erry ' -- \\",
    "渡轮 几点 출발 паром когда أين العبارة",
    "ferry \udce4\ud800",
    "before:soon after: in: from:nobody",
    "before:9999-99-99 after:0000",
    "after:2020 -ferry",
    '"" -"" -',
    "-ferry",
    "!!!",
    'in:"\ud800" ferry',
]
