"""Writes cases.txt: texts with the tokens and scores that sacreBLEU gives them.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install sacrebleu==2.6.0
    /tmp/venv/bin/python reference.py > cases.txt

With the folder of Multi30k as argument it prints the score that tests/real_text.rs expects.
"""

import gzip
import pathlib
import random
import sys

from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

TEXTS = [
    "The dog bit the man.",
    "It wasn't surprising.",
    "Prices rose 3.5 %, to $1,234.56 (see p. 7).",
    "a..b ,, c., d.e",
    "1.5.6,7 .5 5. ,5 5,",
    "in 1990-1995 well-known x-5 5-x 5--5",
    "&quot;A &amp; B&quot; &lt;tag&gt; &amp;lt;",
    "<skipped>kept</skipped> a<skipped>b",
    "trailing space \t",
    "\tleading",
    "two\nlines and a hyphen-\nated word",
    "",
    " ",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "„Anführung“ – Gedankenstrich … «guillemets» 100\u00a0%",
    "日本語、テキスト。 中文,中文.",
    "emoji 😀,😀. e\u0301",
    "a\u001cb\u001dc\u001ed\u001fe\u0085f\u2028g\u3000h\u200bi",
    "٣.٤ Arabic-Indic digits ٣-٤",
    "tab\tinside\rreturn\x0bvertical\x0cform",
    "{a}~[b]`c^d_e\\f|g",
    "http://example.org/a?b=c&d=e#f @user #tag *bold*",
    "'single' \"double\" ''two''",
    "...",
    "., .,",
    "U.S.A. e.g., i.e. 3,000,000.",
    "0.1-0.2 -1 - 1 1-",
]

WORDS = "a the man woman dog is , . in on two young - 3.5 red's running ( ) water 10,000".split()


def cases():
    # The example of sacreBLEU's own documentation, with two lists of references: 48.53.
    yield "published", [
        ("The dog bit the man.", "The dog bit the man.", "The dog had bit the man."),
        ("It wasn't surprising.", "It was not unexpected.", "No one was surprised."),
        ("The man had just bitten him.", "The man bit him first.", "The man had bitten the dog."),
    ]
    yield "same", [("aaaa bbbb cccc dddd", "aaaa bbbb cccc dddd")]
    yield "nothing in common", [("a b c d e", "v w x y z")]
    yield "no 4-gram in common", [("a b c d e f", "a b c x e f")]
    yield "only words in common", [("a b c d e", "e d c b a")]
    yield "shorter than 4", [("a b c", "a b c")]
    yield "short beside long", [("a b", "a b"), ("a b c d e f g", "a b c d e f g")]
    yield "too short", [("a b c d e", "a b c d e f g h i j")]
    yield "too long", [("a b c d e f g h i j", "a b c d e")]
    yield "empty translation", [("", "a b c d e")]
    yield "empty beside full", [("", "a b c d e"), ("a b c d e f", "a b c d e f")]
    yield "empty both", [("", "")]
    yield "repeated words are clipped", [("the the the the the the the", "the cat is on the mat")]
    yield "case counts", [("The Cat Sat On The Mat", "the cat sat on the mat today")]
    yield "texts", [(text, TEXTS[(i + 1) % len(TEXTS)] + " " + text[: len(text) * 3 // 4]) for i, text in enumerate(TEXTS)]
    draw = random.Random(7)
    for number in range(4):
        rows = []
        for _ in range(12):
            reference = [draw.choice(WORDS) for _ in range(draw.randint(1, 18))]
            other = [w for w in reference if draw.random() > 0.2]
            guess = [w if draw.random() > 0.25 else draw.choice(WORDS) for w in reference]
            guess = [w for w in guess if draw.random() > 0.1 * number]
            row = (" ".join(guess), " ".join(reference))
            rows.append(row + (" ".join(other),) if number % 2 else row)
        yield f"random {number}", rows


def score(rows):
    columns = list(zip(*rows))
    result = BLEU().corpus_score(list(columns[0]), [list(column) for column in columns[1:]])
    return [result.score, *result.precisions, result.bp, result.sys_len, result.ref_len]


def escaped(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def multi30k(folder):
    path = pathlib.Path(folder) / "test_2016_flickr.de.gz"
    lines = gzip.open(path, "rt", encoding="utf-8", newline="\n").read().rstrip("\n").split("\n")
    # Every seventh word is lost.
    damaged = [" ".join(w for k, w in enumerate(line.split(" ")) if k % 7 != 3) for line in lines]
    print(score(list(zip(damaged, lines))))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        multi30k(sys.argv[1])
    else:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        tokenize = Tokenizer13a()
        for text in TEXTS:
            print("tokens", escaped(text), escaped(tokenize(text.rstrip())), sep="\t")
        for name, rows in cases():
            print("case", name, len(rows), *(repr(float(x)) for x in score(rows)), sep="\t")
            for row in rows:
                print(*(escaped(text) for text in row), sep="\t")
