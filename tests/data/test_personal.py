"""Personal data: what is replaced, and what only looks like it. Checksums are computed here by other means."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from danlu.cli import cli
from danlu.data.curate.personal import Personal, _replaced, replaced
from danlu.data.read import Document
from danlu.recipe.text_sections import PERSONAL, PersonalSection

from .conftest import write_jsonl

FOUND = {
    "email": [
        "write to jane.doe+news@mail.example.co.uk today",
        "邮箱：zhangsan_88@163.com，谢谢",
        "联系邮箱zhangsan@163.com谢谢",
        "bob [at] example [dot] org",
        "<a href='mailto:x@y.io'>",
    ],
    "phone": [
        "call +44 20 7946 0958 now",
        "+1 (415) 555-2671",
        "(212) 555-0187 or",
        "手机13812345678。",
        "电话：138-1234-5678",
        "tel +8613912345678",
        "座机 010-62345678 转",
        "0755-26712345",
        "+33 1 42 68 53 00",
        "212-555-0187",
        "联系方式15912345678微信同号",
    ],
    "id_card": ["身份证号11010519491231002X", "证件 440524188001010014 号", "SSN 219-09-9999."],
    "bank_card": ["card 4111 1111 1111 1111 exp", "5500005555555559", "卡号6222021234567890128", "3782-822463-10005"],
    "ip": [
        "from 8.8.8.8 port 53",
        "http://93.184.216.34/a",
        "来自 114.114.114.114 的",
        "2606:2800:220:1:248:1893:25c8:1946",
        "地址2a00:1450:4001::200e是",
    ],
    "key": [
        "aws AKIAIOSFODNN7EXAMPLE here",
        "token ghp_" + "a1B2" * 9,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA\n-----END RSA PRIVATE KEY-----",
        "AIza" + "Sy0_-" * 7,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        'password = "k3J9x0Qw7ZpL2mN8vB4t"',
        "API_KEY: 9f86d081884c7d659a2feaa0c55ad015",
        "密码为：k3J9x0Qw7ZpL2mN8vB4t请保管",
        "xoxb-1234567890-abcdefghij",
    ],
}
STAYS = [
    "version 1.2.3.4 of the tool, v10.20.30.40, Chrome/91.0.4472.124, linux-5.10.0.8",
    "版本号 2.14.6.1，固件版本：8.8.8.8",
    "1.3.6.1.4.1.311 is an OID; 192.168.1.10, 127.0.0.1 and 10.0.0.1 are everybody's",
    "2.4.1.3 Results\n\n3.1.2.1 Methods",
    "on 2024-01-15, 15.01.2024, 2024/01/15 12:30:45.123456, 20240115123045",
    "pi is 3.14159265358979, and 13812345678.5 a number; id=13812345678901",
    "ISBN 978-7-111-12345-6; 1234567890123456; 4111111111111112; order 100200300400",
    "11010519491231002", "110105194912310021 has a wrong checksum; 110105194913310020 no such month",
    "@property\ndef f(self): ...", "git@github.com:owner/name.git", "a @ b.c", "std::vector<int> a::b; 12:30:45",
    "price: 555-1234; 1,234,567,890",
    "password = os.environ['DATABASE_PASSWORD_VALUE']", "token: aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "api_key = load_the_key_from_the_settings",
    "第13章 1949年10月1日 共38123456元", "0x13812345678 5e13812345678", "+ 123 + 456 + 789",
    "sk-learn and task-oriented-dialogue-systems",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in FOUND.items() for text in texts])
def test_is_replaced_by_its_kind(kind: str, text: str) -> None:
    changed, counts = replaced(text, PERSONAL)
    assert counts == {kind: 1}, changed
    assert changed.count(f"<{kind.upper()}>") == 1


@pytest.mark.parametrize("text", STAYS)
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert replaced(text, PERSONAL) == (text, {})


def test_what_the_scan_lets_pass_no_pattern_finds() -> None:
    """What is found and what stays, changed by chance, joined, and with a secret's name before it."""
    rng = random.Random(3)
    texts = [*STAYS, *(text for texts in FOUND.values() for text in texts)]
    everything = (1 << 8) - 1
    found = 0
    for _ in range(4000):
        text = rng.choice(texts)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(text) + 1)
            text = (
                text[:at]
                + rng.choice(["", *" -.()+:@=_1a\n'\"：。中\u3000", "[at]", "secret = ", "密码："])
                + text[at + rng.randrange(2) :]
            )
        text = rng.choice(["", "+", "token=>'", rng.choice(texts)]) + text
        every = _replaced(text, PERSONAL, everything)
        assert replaced(text, PERSONAL) == every
        found += bool(every[1])
    assert found > 1000


def test_of_all_last_digits_one_is_right() -> None:
    rng = random.Random(0)
    for _ in range(50):
        number = f"110105{rng.randint(1950, 2005)}{rng.randint(1, 12):02}{rng.randint(1, 28):02}{rng.randint(0, 999):03}"
        right = [last for last in "0123456789X" if replaced(f"证 {number}{last}。", PERSONAL)[1]]
        # ISO 7064: the digits, weighted by powers of two, are 1 modulo 11.
        assert right == [
            last
            for last in "0123456789X"
            if (sum(int(d) * 2 ** (17 - i) for i, d in enumerate(number)) + "0123456789X".index(last)) % 11 == 1
        ]


def test_only_the_kinds_that_are_asked_for() -> None:
    documents = [Document("mail a@b.org from 8.8.8.8", 0, "x", score=0.5), Document("nothing", 0, "y")]
    assert Personal(PersonalSection(kinds=["ip"])).apply(documents) == [
        documents[0]._replace(text="mail a@b.org from <IP>"),
        documents[1],
    ]


def test_a_long_text_takes_no_long_time() -> None:
    """Patterns that look back and forth would take minutes for these."""
    for text in (
        "1 " * 50_000,
        "a." * 50_000,
        "+1-" * 30_000,
        "-----BEGIN PRIVATE KEY-----" + "A" * 100_000,
        "1:" * 50_000,
        "a@" * 50_000,
    ):
        replaced(text, PERSONAL)


def test_the_report_counts_what_was_replaced(tmp_path: Path) -> None:
    texts = ["write to a@b.org or c@d.org", "a <PHONE> stays, 13812345678 goes", "nothing here"]
    write_jsonl(tmp_path / "in.jsonl", texts)
    options = ["--set", "quality=null", "--set", "personal=default", "--output", str(tmp_path / "out")]
    ran = CliRunner().invoke(cli, ["data", "filter", str(tmp_path / "in.jsonl"), *options])
    assert ran.exit_code == 0, ran.output
    report = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert report["personal"] == {"email": 2, "phone": 1}
    assert "Personal data" in (tmp_path / "out" / "curation.html").read_text("utf-8")
