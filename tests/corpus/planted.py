"""Texts whose truth is known: personal data, and texts that plainly are of one register."""

import sysconfig
from pathlib import Path

from sample_archives import prose

PERSONAL = {
    "email": ["ada@lovelace.org", "j.r+list@cs.uni-bonn.de", "BOB_1@mail.co.uk"],
    "phone": ["+44 20 7946 0958", "(202) 555-0143", "212-555-0199", "+49 (0)30 901820", "0033 1 70 18 99 00"],
    "ip": ["128.101.101.101", "2607:f8b0:4005:805::200e"],
    "card": ["4111 1111 1111 1111", "378282246310005", "5500-0000-0000-0004"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "ssn": ["078-05-1120"],
    "key": [
        "AKIA" + "IOSFODNN7EXAMPLE",
        "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345",
        "xoxb-" + "123456789012-abcdefABCDEF",
        "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "-----BEGIN RSA {0}-----\nMIIEowIBAAKCAQEA7bq\n9zq/+w==\n-----END RSA {0}-----".format("PRIVATE KEY"),
    ],
}
HARMLESS = [
    "user@example.com", "git@github.com", "icon@2x.png", "npm install left-pad@1.3.0", "@decorator",
    "192.168.0.1", "127.0.0.1", "10.1.2.3", "v4.18.103.2", "django==3.2.128.200", "2.5.29.37", "::1",
    "2001:db8::1", "std::vector", "4111 1111 1111 1112", "1234567890123456", "2002-08-22 12:36:23",
    "3f786850e387550fdab836ed7e6dc881de23001b", "123e4567-e89b-12d3-a456-426614174000", "#ff00aa",
    "token = '123e4567-e89b-12d3-a456-426614174000'", "XX00 1234 1234 1234 1234", "000-12-3456",
    "secret_key = get_random_secret_key", "password: correct-horse-battery-staple", "1 200 300 400 500",
    "3.141592653589793", "1029945287", "12:34:56", "a @ b.T",
]  # fmt: skip


def registers() -> list[tuple[str, str]]:
    """(register, text) pairs of which every text plainly is what it is called."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-j]*.py"))[:25]
    code = [path.read_text(errors="replace")[:6000] for path in sources if path.stat().st_size > 2000]
    sentences = [
        ". ".join(prose(seed, 400, 12).split("\n\n")).capitalize() + "." for seed in range(len(code))
    ]
    lists = ["\n".join(f"- {line}" for line in prose(seed, 300, 8).split("\n\n")) for seed in range(20)]
    menus = ["\n".join(prose(seed, 200, 3).split("\n\n")) for seed in range(20)]
    repeats = [f"{prose(seed, 12)}\n" * 40 for seed in range(20)]
    kinds = {"code": code, "prose": sentences, "list": lists, "boilerplate": menus, "repetition": repeats}
    return [(kind, text) for kind, texts in kinds.items() for text in texts]
