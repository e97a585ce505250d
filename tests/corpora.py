"""Small corpora with planted clusters and a known answer, the same for the same seed everywhere.

Near copies are made by exchanging words that stand at least five apart in a text whose 5-shingles are all different:
each exchange takes five shingles out and puts five in, so that Jaccard = (S - 5e) / (S + 5e) for S shingles and e
exchanges. Every corpus can carry the awkward rows: empty, one byte, punctuation only, all equal, one huge.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_ENGLISH = """
the of and to in is that it was for on are with as his they be at one have this from or had by hot but some what
there we can out other were all your when up use word how said an each she which do their time if will way about
many then them would write like so these her long make thing see him two has look more day could go come did my
sound no most number who over know water than call first people may down side been now find any new work part take
get place made live where after back little only round man year came show every good me give our under name very
through just form much great think say help low line before turn cause same mean differ move right boy old too does
tell sentence set three want air well also play small end put home read hand port large spell add even land here
must big high such follow act why ask men change went light kind off need house picture try us again animal point
mother world near build self earth father head stand own page should country found answer school grow study still
learn plant cover food sun four thought let keep eye never last
"""
ENGLISH = _ENGLISH.split()
HAN = (
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多"
    "日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从清晨港口还没有完全醒来几只海鸥沿着防波堤慢慢走动老渔夫把昨晚补好"
)
KEYWORDS = (
    "def", "return", "for", "in", "if", "else", "while", "import", "from", "class", "self", "None", "True",
    "False", "print", "len", "range", "yield", "with", "as", "try",
)  # fmt: skip


@dataclass
class Corpus:
    """`rows` in file order with unique ids; `groups`: ids of rows that are one text, the first of them kept by
    keep=first."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)

    @property
    def kept(self) -> list[str]:
        """Ids that stay under keep=first, in file order."""
        gone = {member for group in self.groups for member in group[1:]}
        return [row["id"] for row in self.rows if row["id"] not in gone]


def english(rng: random.Random, words: int) -> list[str]:
    """Words such that no run of five comes twice (in practice: 230 ** 5 runs are possible)."""
    return [rng.choice(ENGLISH) for _ in range(words)]


def made_up(rng: random.Random, words: int) -> list[str]:
    """Different made-up words: every shingle of any length is unique within the text."""
    out: dict[str, None] = {}
    while len(out) < words:
        out["".join(rng.choice("bcdfghklmnprstvz") + rng.choice("aeiou") for _ in range(4))] = None
    return list(out)


def chinese(rng: random.Random, chars: int) -> str:
    out = []
    while len(out) < chars:
        out += [rng.choice(HAN) for _ in range(rng.randint(5, 18))] + [rng.choice("，。")]
    return "".join(out[:chars])


def code(rng: random.Random, lines: int) -> str:
    names = made_up(rng, 12)
    out = []
    for _ in range(lines):
        left, right, other = (rng.choice(names) for _ in range(3))
        out.append(
            " " * rng.choice((0, 4, 8))
            + rng.choice(
                (
                    f"{left} = {right} + {other}[{rng.randint(0, 99)}]",
                    f"if {left} != {right}: return {other}",
                    f"for {left} in range({rng.randint(1, 9999)}):  # {right}",
                    f"{rng.choice(KEYWORDS)} {left}_{right}({other!r}, {rng.random():.3f})",
                )
            )
        )
    return "\n".join(out) + "\n"


def exchange(rng: random.Random, words: Sequence[str], edits: int) -> list[str]:
    """A copy with `edits` words exchanged for new ones, at least five apart and away from both ends."""
    room = (len(words) - 10) // 5
    if edits > room:
        raise ValueError(f"{len(words)} words have no room for {edits} edits five apart")
    out = list(words)
    for i, slot in enumerate(sorted(rng.sample(range(room), edits))):
        out[5 + 5 * slot] = f"edited{rng.randint(0, 10**9)}x{i}"
    return out


def known_jaccard(words: int, edits: int, n: int = 5) -> tuple[int, int]:
    """(shared, union) of a text of unique shingles and its copy with `edits` exchanges."""
    count = words - n + 1
    return count - n * edits, count + n * edits


def awkward(prefix: str = "awk", huge: int = 200_000) -> list[dict[str, Any]]:
    """Rows that no corpus should do without; none of them is a copy of another."""
    return [
        {"id": f"{prefix}-empty", "text": ""},
        {"id": f"{prefix}-byte", "text": "x"},
        {"id": f"{prefix}-blanks", "text": " \t\n "},
        {"id": f"{prefix}-dots", "text": "...!!!"},
        {"id": f"{prefix}-dashes", "text": "-----"},
        {"id": f"{prefix}-equal", "text": "same " * 500},
        {"id": f"{prefix}-emoji", "text": "\U0001f600\u200d\U0001f525 caf\u00e9 \ufb01n \u0663"},
        {"id": f"{prefix}-nul", "text": "a\x00b\u2028c"},
        {"id": f"{prefix}-half", "text": "half \ud800 pair"},
        {"id": f"{prefix}-huge", "text": " ".join(f"w{i * 7919 % 99991}" for i in range(huge // 7))},
    ]


def planted(
    seed: int | str, clusters: int = 12, loners: int = 12, awkward_rows: bool = True, huge: int = 60_000
) -> Corpus:
    """English-like, Chinese, code and short texts; each cluster an original, exact copies and near copies (J >= 0.88).

    Rows come in a shuffled order; under keep=first each group keeps its first row. Members of one cluster are all
    within the threshold 0.8 of one another (two copies with e edits each of one original: J >= (S - 10 e) / (S + 10
    e)).
    """
    rng = random.Random(f"planted {seed}")
    corpus = Corpus()
    groups: dict[int, list[str]] = {}
    for cluster in range(clusters):
        kind = ("english", "chinese", "code", "short")[cluster % 4]
        copies = rng.randint(1, 4)
        if kind == "english":
            words = made_up(rng, rng.randint(150, 400))
            edits = len(words) // 100  # S = words - 4: two copies have J >= 0.81
            texts = [" ".join(words)] + [
                " ".join(exchange(rng, words, rng.choice((0, edits)))) + rng.choice(("", "\n", "  "))
                for _ in range(copies)
            ]
        elif kind == "chinese":
            text = chinese(rng, rng.randint(200, 400))
            texts = [text]
            for _ in range(copies):
                place = rng.randint(20, len(text) - 20)
                texts.append(text[:place] + rng.choice("龘靐齉爩") + text[place + 1 :])
        elif kind == "code":
            text = code(rng, rng.randint(30, 60))
            texts = [text] + [text + rng.choice(("", "# end\n", "\n\n")) for _ in range(copies)]
        else:
            text = f"note {rng.randint(0, 10**9)} for {rng.choice(ENGLISH)}"
            texts = [text] + [rng.choice((text, text.upper(), f" {text}  ")) for _ in range(copies)]
        for i, text in enumerate(texts):
            corpus.rows.append({"id": f"c{cluster}-{i}", "text": text, "cluster": cluster})
    for i in range(loners):
        text = (" ".join(english(rng, 120)), chinese(rng, 150), code(rng, 20), f"lonely {i}")[i % 4]
        corpus.rows.append({"id": f"l{i}", "text": text, "cluster": None})
    if awkward_rows:
        corpus.rows += [{**row, "cluster": None} for row in awkward(huge=huge)]
    rng.shuffle(corpus.rows)
    for i, row in enumerate(corpus.rows):
        row["score"] = (i * 7919) % 1009 / 8  # all different while there are fewer than 1,009 rows
        if row["cluster"] is not None:
            groups.setdefault(row["cluster"], []).append(row["id"])
        del row["cluster"]
    corpus.groups = list(groups.values())
    return corpus


def chain(seed: int | str, links: int = 12, words: int = 110, step: int = 11) -> Corpus:
    """A window that slides over one long text: neighbours alike, the ends not. Groups: pairs, for a representative rule
    at a threshold between the similarity of neighbours and that of two steps."""
    rng = random.Random(f"chain {seed}")
    stream = made_up(rng, words + step * (links - 1))
    corpus = Corpus()
    for i in range(links):
        corpus.rows.append({"id": f"c{i:02}", "text": " ".join(stream[i * step : i * step + words])})
    corpus.groups = [[f"c{i:02}", f"c{i + 1:02}"] for i in range(0, links - 1, 2)]
    return corpus


def line(row: dict[str, Any], ascii_only: bool = False) -> bytes:
    """One JSON line with its line feed; lone surrogates as escapes."""
    if ascii_only or any("\ud800" <= c <= "\udfff" for c in json.dumps(row, ensure_ascii=False)):
        return json.dumps(row).encode() + b"\n"
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(line(row) for row in rows)
