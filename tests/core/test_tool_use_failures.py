import json

import pytest

from refold.core.tool_use import (
    MAX_LINE,
    MAX_LINES,
    MAX_SEARCHED,
    error_lines,
    has_failed,
    stated_errors,
)
from refold.model.message import Text, ToolResult
from tests.features.tool_outputs import FAILURES, LOOK_ALIKES


def result(text, *, is_error=False):
    return ToolResult("c", (Text(text),), is_error=is_error)


@pytest.mark.parametrize(
    "text, failed",
    [
        ("Error: no such file", True),
        ("error reading a.py", True),
        ("Traceback (most recent call last):\n", True),
        ("<returncode>1</returncode>", True),
        ("<returncode>0</returncode>", False),
        ("Exit code 2\nboom", True),
        ("exit status: 0", False),
        ("Exit status 2 means trouble.", False),
        ("fatal: not a git repository", True),
        ("Error handling in Python, a guide", False),
        ("all fine, error: none", False),
        ("", False),
    ],
)
def test_failures_without_a_flag_are_known_by_their_first_words(text, failed):
    assert has_failed(result(text)) is failed
    assert has_failed(result(text, is_error=True))


@pytest.mark.parametrize(
    "line",
    [
        'app/cart.py:12: error: Incompatible types in assignment (expression has type "str")',
        "1 failing",
        "3 examples, 1 failure",
        "[ERROR] Failed to execute goal org.apache.maven.plugins:maven-compiler-plugin",
        "FAILURE: Build failed with an exception.",
        "cart.rb:12:in `total': undefined method `price' for nil:NilClass (NoMethodError)",
        'ERROR: relation "orders" does not exist',
        "npm error code E404",
        "ERROR: Could not find a version that satisfies the requirement foo==9",
        'Error from server (NotFound): pods "shop-1" not found',
        "An error occurred (AccessDenied) when calling the GetObject operation: Access Denied",
        "│ Error: Invalid reference",
        'fatal: [web1]: FAILED! => {"msg": "no"}',
        'error An unexpected error occurred: "https://example.com: ESOCKETTIMEDOUT".',
        "Segmentation fault (core dumped)",
        "ERR_PNPM_NO_MATCHING_VERSION No matching version found for x@9",
        "Program.cs(5,10): error CS1002: ; expected",
        "./main.go:5:2: undefined: foo",
        '{"message":"Not Found","status":"404"}',
        '{"detail":"Not found."}',
        '{"statusCode":500,"message":"Internal server error"}',
        "terraform : The term 'terraform' is not recognized as the name of a cmdlet",
        "Found 1 error.",
        "PHP Fatal error: Uncaught Error: Call to undefined function x() in /a.php:3",
        "FAIL: test_total (tests.test_cart.CartTest)",
        "2025-03-04 10:12:44,123 ERROR shop.pay Payment failed for order 7",
        "./run.sh: line 3: cd: /nope: No such file or directory",
        "/usr/bin/python3: No module named pytest",
        "Command timed out after 120 seconds",
        "test result: FAILED. 3 passed; 1 failed; 0 ignored",
        "404 Not Found",
    ],
)
def test_further_forms_of_errors(line):
    assert error_lines(f"working on it\n{line}\nbye" if line[0] != "{" else line) == (line,)


@pytest.mark.parametrize(
    "text",
    [
        *LOOK_ALIKES.values(),
        "Errors: 0, Warnings: 2",
        "- error: string\n- code: number",
        "class PaymentError(Exception):\n    pass",
        "Raises:\n    KeyError: no such key",
        "| error | meaning |\n|---|---|",
        "10 passed, 0 failed",
        '{"errors":0,"failed":0,"ok":true}',
        '{"message":"Created","status":"201"}',
        "fix: cannot open the cart twice",
        "warning: unused variable `error`",
        '{"ok": false',
    ],
)
def test_texts_about_errors_state_none(text):
    assert error_lines(text) == ()
    assert not has_failed(result(text))


def test_the_first_lines_and_the_last_are_kept():
    text = "\n".join(f"error: number {n} " + "x" * 400 for n in range(9))
    found = error_lines(text)
    assert len(found) == MAX_LINES
    assert [line.split()[2] for line in found] == ["0", "1", "8"]
    assert all(len(line) <= MAX_LINE for line in found)
    assert error_lines("x\n" * MAX_SEARCHED + text)[-1].startswith("error: number 8")


def test_output_inside_of_an_object():
    run = {"output": FAILURES["pytest"].output, "metadata": {"exit_code": 1}}
    assert FAILURES["pytest"].errors[0] in error_lines(json.dumps(run))
    assert error_lines(json.dumps({"output": "no match", "metadata": {"exit_code": 1}})) == ("no match",)
    assert error_lines(json.dumps({"output": "fine", "metadata": {"exit_code": 0}})) == ()


def test_the_content_of_a_file_fails_only_as_a_whole():
    log = "starting\n" * 30 + "error: it broke\n"
    assert stated_errors(result(log)) == ("error: it broke",)
    assert stated_errors(result(log), is_content=True) == ()
    missing = "cat: a.py: No such file or directory"
    assert stated_errors(result(missing), is_content=True) == (missing,)
