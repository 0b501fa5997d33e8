from refold.tokens.counters import Memo, digest


def test_a_memo_never_holds_more_than_two_generations():
    memo = Memo(generation=100)
    for number in range(10_000):
        memo.put(digest(f"text {number}"), number)
    assert len(memo) <= 200


def test_what_is_asked_for_again_and_again_stays():
    memo = Memo(generation=10)
    memo.put(digest("the system prompt"), 7)
    for number in range(1_000):
        memo.put(digest(f"text {number}"), number)
        assert memo.get(digest("the system prompt")) == 7
    assert memo.get(digest("text 0")) is None


def test_different_texts_have_different_digests():
    texts = ["", "a", "A", "a ", "a\ud800", "a\ud801", "é", "e\u0301"]
    assert len({digest(text) for text in texts}) == len(texts)
    assert all(len(digest(text)) == 16 for text in texts)
