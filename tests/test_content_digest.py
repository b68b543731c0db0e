"""Content-Digest: which headers are understood, and that a body is checked by them."""

import base64
import contextlib
import hashlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from loadscope.app.content_digest import (
    ALGORITHMS,
    EXAMPLE,
    DigestError,
    DigestMismatch,
    parse_content_digest,
)

BODY = b'{"hello": "world"}\n'
# the first stands in RFC 9530
SHA256 = "RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg="
SHA512 = base64.b64encode(hashlib.sha512(BODY).digest()).decode()
XXH3 = base64.b64encode(xxhash.xxh3_128_digest(BODY)).decode()
KNOWN = {"sha-256": SHA256, "sha-512": SHA512, "xxh3-128": XXH3}
KEYS = st.from_regex(r"[a-z*][a-z0-9_\-.*]{0,12}", fullmatch=True).filter(lambda k: k not in KNOWN)
BYTES = st.binary(max_size=40)


def text(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


@pytest.mark.parametrize(("algorithm", "digest"), KNOWN.items())
def test_each_algorithm_accepts_its_body_and_no_other(algorithm: str, digest: str) -> None:
    check = parse_content_digest(f"{algorithm}=:{digest}:")
    for start in range(0, len(BODY), 5):
        check.update(BODY[start : start + 5])
    check.check()
    check.update(b"!")
    with pytest.raises(DigestMismatch) as refused:
        check.check()
    got = ALGORITHMS[algorithm]()
    got.update(BODY + b"!")
    assert (refused.value.expected, refused.value.got) == (digest, text(got.digest()))
    assert digest in str(refused.value)
    assert refused.value.got in str(refused.value)


def test_the_example_of_the_rfc_is_ours_too() -> None:
    check = parse_content_digest(f"sha-256=:{SHA256}:")
    check.update(b'{"hello": "world"}\n')
    check.check()


def test_the_example_in_our_messages_is_a_good_header() -> None:
    assert str(parse_content_digest(EXAMPLE)) == EXAMPLE


@pytest.mark.parametrize(
    ("header", "algorithm"),
    [
        (f"sha-512=:{SHA512}:, sha-256=:{SHA256}:", "sha-256"),
        (f"sha-256=:{SHA256}:,xxh3-128=:{XXH3}:", "xxh3-128"),
        (f"md5=:{text(b'x' * 16)}: \t,\t sha-512=:{SHA512}:", "sha-512"),
        (f"  sha-256=:{SHA256}:  ", "sha-256"),
        (f"sha-256=:{SHA256.rstrip('=')}:", "sha-256"),
        (f'sha-256=:{SHA256}:;q=1; note="a, b";flag', "sha-256"),
        (f"sha-256=:{text(b'0' * 32)}:, sha-256=:{SHA256}:", "sha-256"),
    ],
)
def test_the_quickest_known_digest_is_checked(header: str, algorithm: str) -> None:
    assert str(parse_content_digest(header)) == f"{algorithm}=:{KNOWN[algorithm]}:"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, "found no Content-Digest"),
        ("", "found no Content-Digest"),
        (" ", "found no Content-Digest"),
        ("sha-256", "'sha-256'"),
        (f"sha-256={SHA256}", "found 'sha-256=RK/"),
        (f"sha-256:{SHA256}:", "found 'sha-256:RK/"),
        (f'sha-256="{SHA256}"', "found 'sha-256=\""),
        (f"SHA-256=:{SHA256}:", "found 'SHA-256"),
        (f"sha-256=:{SHA256}", "found 'sha-256"),
        (f"sha-256=:{SHA256}:,", "nothing after a comma"),
        (f"sha-256=:{SHA256}: sha-512=:{SHA512}:", "found ' sha-512"),
        (f"sha-256=:{SHA256[:-4]}:", "sha-256 of 30 bytes in Content-Digest; expected 32 bytes"),
        (f"xxh3-128=:{XXH3}:, sha-256=:AAAA:", "sha-256 of 3 bytes"),
        ("sha-256=:A:", "found 'sha-256=:A:'"),
        ("sha-256=:=:", "sha-256 of 0 bytes"),
        ("sha-256=:A=A=:", "found 'sha-256=:A=A=:'"),
        ("sha-256=:\u00e9:", r"found 'sha-256=:\\xe9:'"),
        ("sha-256=:AAAA:" * 1000, "of 14,000 characters"),
    ],
)
def test_what_is_no_digest_is_told_with_an_example(header: str | None, found: str) -> None:
    with pytest.raises(DigestError, match=found.replace("'", ".")) as refused:
        parse_content_digest(header)
    if header is None or len(header) < 4096:
        assert EXAMPLE in str(refused.value)


def test_unknown_algorithms_alone_are_refused_with_the_known_ones() -> None:
    with pytest.raises(DigestError, match="with md5, sha; expected one of") as refused:
        parse_content_digest("md5=:AAAA:, sha=:AAAA:")
    assert all(algorithm in str(refused.value) for algorithm in KNOWN)


@given(body=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_how_a_body_is_cut_does_not_matter(body: bytes, cuts: list[int]) -> None:
    header = ", ".join(f"{name}=:{_digest(name, body)}:" for name in KNOWN)
    check = parse_content_digest(header)
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, stop in zip(places, places[1:], strict=False):
        check.update(body[start:stop])
    check.check()


def _digest(name: str, body: bytes) -> str:
    made = ALGORITHMS[name]()
    made.update(body)
    return text(made.digest())


@given(
    others=st.dictionaries(KEYS, BYTES, max_size=4),
    known=st.dictionaries(st.sampled_from(sorted(KNOWN)), st.binary(min_size=64, max_size=64)),
    order=st.randoms(use_true_random=False),
    comma=st.sampled_from([",", ", ", " ,\t"]),
)
def test_any_well_formed_header_gives_the_first_known_of_our_order(
    others: dict[str, bytes], known: dict[str, bytes], order: object, comma: str
) -> None:
    digests = {name: value[: ALGORITHMS[name]().digest_size] for name, value in known.items()}
    members = [f"{name}=:{text(value)}:" for name, value in {**others, **digests}.items()]
    order.shuffle(members)  # type: ignore[attr-defined]
    header = comma.join(members)
    first = next((name for name in ALGORITHMS if name in digests), None)
    if first is None:
        with pytest.raises(DigestError):
            parse_content_digest(header)
    else:
        assert parse_content_digest(header).expected == digests[first]


@given(st.text(max_size=200))
def test_any_text_is_understood_or_refused(header: str) -> None:
    with contextlib.suppress(DigestError):
        parse_content_digest(header)


@given(
    place=st.integers(0, 62),
    letter=st.characters(codec="latin-1", exclude_characters="+/=:ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
)
def test_one_strange_letter_never_passes_as_the_same_digest(place: int, letter: str) -> None:
    header = f"sha-256=:{SHA256}:"
    place %= len(header)
    changed = header[:place] + letter + header[place + 1 :]
    try:
        parsed = parse_content_digest(changed)
    except DigestError:
        return
    assert changed.strip() == header or str(parsed) != header
