"""Outputs of common tools, as the tools print them: failures, and texts that only look like failures."""

from __future__ import annotations

from typing import NamedTuple


class Failure(NamedTuple):
    command: str
    output: str
    errors: tuple[str, ...]
    """The lines that state the error."""


FAILURES = {
    "pytest": Failure(
        "pytest -q tests/test_cart.py",
        """\
..F..                                                                    [100%]
=================================== FAILURES ===================================
_____________________________ test_total_with_tax ______________________________

    def test_total_with_tax():
        cart = Cart([Item("pen", 200)])
>       assert cart.total(tax=0.19) == 238
E       assert 237 == 238
E        +  where 237 = total(tax=0.19)

tests/test_cart.py:14: AssertionError
=========================== short test summary info ============================
FAILED tests/test_cart.py::test_total_with_tax - assert 237 == 238
1 failed, 4 passed in 0.12s
""",
        ("FAILED tests/test_cart.py::test_total_with_tax - assert 237 == 238",),
    ),
    "npm": Failure(
        "npm install",
        """\
npm WARN deprecated inflight@1.0.6: This module is not supported
npm ERR! code ERESOLVE
npm ERR! ERESOLVE unable to resolve dependency tree
npm ERR!
npm ERR! While resolving: shop@1.4.0
npm ERR! Found: react@18.2.0
""",
        ("npm ERR! code ERESOLVE",),
    ),
    "make": Failure(
        "make all",
        """\
cc -O2 -c -o parse.o parse.c
cc -O2 -o tool parse.o lex.o
/usr/bin/ld: cannot find -lpcre
collect2: error: ld returned 1 exit status
make: *** [Makefile:12: tool] Error 1
""",
        ("make: *** [Makefile:12: tool] Error 1",),
    ),
    "cargo": Failure(
        "cargo build",
        """\
   Compiling ledger v0.3.1 (/srv/ledger)
error[E0382]: borrow of moved value: `entries`
  --> src/main.rs:21:20
   |
18 |     let entries = read();
   |         ------- move occurs because `entries` has type `Vec<Entry>`
21 |     println!("{}", entries.len());
   |                    ^^^^^^^ value borrowed here after move

For more information about this error, try `rustc --explain E0382`.
error: could not compile `ledger` (bin "ledger") due to 1 previous error
""",
        ("error[E0382]: borrow of moved value: `entries`",),
    ),
    "go": Failure(
        "go test ./...",
        """\
=== RUN   TestParse
    parse_test.go:31: Parse("a;b") = 1 fields, want 2
--- FAIL: TestParse (0.00s)
FAIL
FAIL	example.com/fields	0.003s
ok  	example.com/fields/csv	0.002s
FAIL
""",
        ("--- FAIL: TestParse (0.00s)",),
    ),
    "gcc": Failure(
        "gcc -Wall -c list.c",
        """\
list.c: In function 'push':
list.c:42:17: error: 'struct node' has no member named 'nxt'; did you mean 'next'?
   42 |     head->nxt = fresh;
      |           ^~~
      |           next
""",
        ("list.c:42:17: error: 'struct node' has no member named 'nxt'; did you mean 'next'?",),
    ),
    "bash": Failure(
        "terraform plan",
        "bash: line 1: terraform: command not found\n",
        ("bash: line 1: terraform: command not found",),
    ),
    "zsh": Failure("poetry lock", "zsh: command not found: poetry\n", ("zsh: command not found: poetry",)),
    "cp": Failure(
        "cp settings.toml /etc/shop/",
        "cp: cannot create regular file '/etc/shop/settings.toml': Permission denied\n",
        ("cp: cannot create regular file '/etc/shop/settings.toml': Permission denied",),
    ),
    "json": Failure(
        "curl -s https://api.example.com/v1/charges -d amount=200",
        """\
{
  "error": {
    "type": "invalid_request_error",
    "code": "parameter_missing",
    "message": "Missing required param: currency."
  }
}
""",
        ('"message": "Missing required param: currency."',),
    ),
    "json in one line": Failure(
        "curl -s https://api.example.com/v1/orders/77",
        '{"success":false,"error":"order 77 is locked by another session","request":"r-5521"}\n',
        ('"error":"order 77 is locked by another session"',),
    ),
    "http": Failure(
        "curl -si https://api.example.com/health",
        """\
HTTP/1.1 503 Service Unavailable
content-type: text/plain
retry-after: 30
date: Tue, 04 Mar 2025 10:12:44 GMT

no healthy upstream
""",
        ("HTTP/1.1 503 Service Unavailable",),
    ),
    "requests": Failure(
        "python fetch.py",
        """\
fetching page 1
fetching page 2
requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://api.example.com/items?page=2
""",
        ("requests.exceptions.HTTPError: 429 Client Error: Too Many Requests",),
    ),
    "python": Failure(
        "python import_orders.py",
        """\
reading orders.csv
Traceback (most recent call last):
  File "/srv/shop/import_orders.py", line 48, in <module>
    main()
  File "/srv/shop/import_orders.py", line 31, in main
    price = Decimal(row["price"])
KeyError: 'price'
""",
        ("KeyError: 'price'",),
    ),
    "node": Failure(
        "node server.js",
        """\
listening on 3000
/srv/shop/server.js:17
  const total = cart.items.length;
                     ^

TypeError: Cannot read properties of undefined (reading 'items')
    at handler (/srv/shop/server.js:17:22)
    at process.processTicksAndRejections (node:internal/process/task_queues:95:5)

Node.js v20.11.0
""",
        ("TypeError: Cannot read properties of undefined (reading 'items')",),
    ),
    "java": Failure(
        "java -jar billing.jar",
        """\
10:01:12 INFO  Billing - started
Exception in thread "main" java.lang.IllegalStateException: no price list for region EU
	at com.example.billing.Prices.load(Prices.java:54)
	at com.example.billing.Main.main(Main.java:19)
Caused by: java.io.FileNotFoundException: prices/eu.csv (No such file or directory)
	... 2 more
""",
        ("java.lang.IllegalStateException: no price list for region EU",),
    ),
    "git": Failure(
        "git pull",
        """\
From github.com:example/shop
   4f2a1c9..8be0d13  main       -> origin/main
Auto-merging cart.py
CONFLICT (content): Merge conflict in cart.py
Automatic merge failed; fix conflicts and then commit the result.
""",
        ("CONFLICT (content): Merge conflict in cart.py",),
    ),
    "git push": Failure(
        "git push",
        """\
To github.com:example/shop.git
 ! [rejected]        main -> main (fetch first)
error: failed to push some refs to 'github.com:example/shop.git'
hint: Updates were rejected because the remote contains work that you do not have locally.
""",
        ("error: failed to push some refs to 'github.com:example/shop.git'",),
    ),
    "docker": Failure(
        "docker build .",
        """\
#7 [3/4] COPY package.json .
#7 DONE 0.1s
#8 [4/4] RUN npm ci --omit=dev
#8 ERROR: process "/bin/sh -c npm ci --omit=dev" did not complete successfully: exit code: 127
------
 > [4/4] RUN npm ci --omit=dev:
0.214 /bin/sh: npm: not found
""",
        ('ERROR: process "/bin/sh -c npm ci --omit=dev" did not complete successfully: exit code: 127',),
    ),
    "tsc": Failure(
        "npx tsc --noEmit",
        """\
src/cart.ts(12,5): error TS2322: Type 'string' is not assignable to type 'number'.
src/cart.ts(30,18): error TS2339: Property 'sku' does not exist on type 'Item'.
""",
        ("src/cart.ts(30,18): error TS2339: Property 'sku' does not exist on type 'Item'.",),
    ),
    "eslint": Failure(
        "npx eslint src",
        """\

/srv/shop/src/cart.js
   3:7   warning  'tax' is assigned a value but never used  no-unused-vars
  18:12  error    'discount' is not defined                  no-undef

✖ 2 problems (1 error, 1 warning)
""",
        ("18:12 error 'discount' is not defined no-undef",),
    ),
    "jest": Failure(
        "npx jest",
        """\
PASS src/price.test.js
FAIL src/cart.test.js
  ● cart › adds tax

    expect(received).toBe(expected) // Object.is equality

    Expected: 238
    Received: 237

Tests:       1 failed, 6 passed, 7 total
Time:        0.81 s
""",
        ("Tests: 1 failed, 6 passed, 7 total",),
    ),
}
"""The usual failures. White space is compared as one blank."""

LOOK_ALIKES = {
    "pytest": "....... [100%]\n7 passed in 0.31s\n",
    "pytest, expected": "tests/test_errors.py ..x.                         [100%]\n3 passed, 1 xfailed in 0.20s\n",
    "pytest, verbose": "tests/test_api.py::test_error_is_raised PASSED [ 50%]\ntests/test_api.py::test_failed_login PASSED [100%]\n2 passed in 0.02s\n",
    "no errors": "Found 0 errors. Watching for file changes.\n",
    "mypy": "Success: no issues found in 42 source files\n",
    "no error": "Checked 118 links: no error found.\n",
    "counter": "2025-03-04T10:12:44Z level=info msg=flushed error_count=0 failed=0 batch=220\n",
    "listing": "src/errors.py\nsrc/error_pages/404.html\nsrc/exceptions.py\ntests/test_failures.py\n",
    "long listing": "-rw-r--r-- 1 me me 2210 Mar  4 10:12 errors.py\n-rw-r--r-- 1 me me  912 Mar  4 10:12 error.log\n",
    "grep": 'src/api.py:14:class NotFoundError(Exception):\nsrc/api.py:88:    raise NotFoundError("no such order")\n',
    "code": 'def read(path):\n    try:\n        return open(path).read()\n    except OSError as error:\n        raise ConfigError(f"cannot read {path}") from error\n',
    "numbered code": '   41\tif not row:\n   42\t    logger.error("error: the row is empty")\n   43\t    return None\n',
    "document": "# Error handling\n\nErrors are reported with a code. An error: a value that the caller has to handle.\nA failed request is tried again twice.\n",
    "manual": "Exit status 1 means that differences were found, 2 means trouble.\n",
    "json": '{"id": "ch_1", "status": "succeeded", "error": null, "errors": [], "failure_code": null}\n',
    "json, several lines": '{\n  "data": {"id": 7},\n  "error": null,\n  "message": "ok"\n}\n',
    "http": "HTTP/1.1 200 OK\ncontent-type: application/json\n\n{}\n",
    "http, moved": "HTTP/2 304 Not Modified\netag: 5500\n",
    "git log": "4f2a1c9 Fix the error in the cart\n8be0d13 Report a failed payment as an error\n",
    "git status": "On branch fix/error-page\nnothing to commit, working tree clean\n",
    "git diff": '@@ -1,4 +1,4 @@\n-    raise ValueError("error: no price")\n+    raise PriceError("error: no price for the region")\n',
    "jest": "PASS src/errors.test.js\nTests:       7 passed, 7 total\n",
    "go": "ok  \texample.com/errors\t0.003s\n",
    "cargo": "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
    "eslint": "✖ 1 problem (0 errors, 1 warning)\n",
    "unittest": "Ran 12 tests in 0.044s\n\nOK (expected failures=1)\n",
    "fix": "error handling: improved; see also the page about failures\n",
    "csv": "name,error,failed\nnorth,0.02,0\nsouth,0.05,0\n",
    "help": "usage: tool [--error-format FORMAT] [--fail-fast]\n  --fail-fast   stop at the first error\n",
}
"""Outputs without an error that speak of errors."""
