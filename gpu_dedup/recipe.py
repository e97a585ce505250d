"""Recipe: all that changes the answer, and nothing else. Frozen, comparable, with a fingerprint.

The fingerprint is stored in every file that outlives the process; two runs with the same fingerprint over the same
input give the same surviving rows, on every backend.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from gpu_dedup.errors import RecipeError, check_types

PPM = 1_000_000  # thresholds are whole millionths: everything that decides is an integer
PPB = 1_000_000_000  # and rates of false positives, which are small, whole billionths

# Version of the definitions in this package that a recipe leans on: normaliser, units, shingle hash, sketch, band key,
# cap rule. Raised whenever one of them changes an answer.
DEFINITIONS = 1

METHODS = ("minhash", "simhash", "cascade", "exact", "bloom", "lshbloom")
BANDED = ("minhash", "cascade", "lshbloom")  # they sketch, and rows meet by equal bands
PRINTED = ("simhash", "cascade")  # they have fingerprints, and rows meet where these are near
STREAMED = ("bloom", "lshbloom")  # decide row by row in the first pass, by filters of fixed size
SKETCHES = ("minhash", "fast")
BUCKETS = (  # fields of bands, and of the pairs that meet in them
    "bands", "rows", "recall_ppm", "num_perm", "seed", "sieve_cut", "bucket_cap", "cap_lowest", "cap_splits",
    "cap_slots",
)  # fmt: skip
WEIGHTS = ("set", "count", "tfidf")
# The order of the steps is fixed; a recipe says which of them are on.
NORMALIZE_STEPS = ("html", "nfc", "nfkc", "lower", "accents", "digits", "punctuation", "whitespace", "nospace")
UNITS = ("token", "word", "char", "byte", "code")
ITEM = "item"  # the unit of rows that come as lists of tokens
VERIFY = ("exact", "edit", "signature", "none")
CLUSTER = ("representative", "connected")
WITNESS = ("lowest", "best")
ACTIONS = ("remove", "flag")
FORMATS = ("jsonl", "csv", "tsv", "txt", "parquet", "arrow")
MAX_SLOTS = 1024
MIN_SLOTS = 16
BITS = 64  # of a SimHash
MAX_DISTANCE = 8  # bits of a fingerprint; a search for more costs too much
LARGEST = 2**31 - 1  # of counts that kernels take


def _choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise RecipeError(f"{name} {value!r} is unknown; choose one of {', '.join(allowed)}")


def ppm(name: str, value: float | int | str) -> int:
    """A share between 0 and 1 as whole millionths; decimal text is exact ('0.8' is 800000)."""
    return _parts(name, value, PPM, "finer than a millionth; give at most six decimals", "0.8")


def ppb(name: str, value: float | int | str) -> int:
    """A share between 0 and 1 as whole billionths, as `ppm`."""
    return _parts(name, value, PPB, "finer than a billionth; give at most nine decimals", "0.000001")


def ppb_text(parts: int) -> str:
    """1000 -> '0.000001'; exact."""
    return format(Decimal(parts).scaleb(-9).normalize(), "f")


def whole(name: str, value: Any) -> int:
    """A whole number of any type that is one (NumPy's too). Raises RecipeError; True is no number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise RecipeError(f"{name} is {value!r}, a {type(value).__name__}; give a whole number") from None


def _parts(name: str, value: float | int | str, whole: int, finer: str, example: str) -> int:
    try:
        share = Decimal(str(value))
    except InvalidOperation:
        raise RecipeError(f"{name} {value!r} is not a number; give a share such as {example}") from None
    if not share.is_finite() or not 0 <= share <= 1:
        raise RecipeError(f"{name} {value} is outside 0 to 1; give a share such as {example}")
    exact = share * whole
    if exact != exact.to_integral_value():
        raise RecipeError(f"{name} {value} is {finer}")
    return int(exact)


@dataclass(frozen=True)
class ShingleSpec:
    """`unit:n`, parsed: shingles are n consecutive units."""

    unit: str
    n: int

    @property
    def unit_code(self) -> int:
        """Position in UNITS: the number that kernels know. Items are the words of their text (read/items.py)."""
        return UNITS.index("word" if self.unit == ITEM else self.unit)

    @classmethod
    def parse(cls, text: str) -> ShingleSpec:
        unit, _, count = text.partition(":")
        if unit not in UNITS and unit != ITEM:
            raise RecipeError(
                f"shingle unit {unit!r} is unknown; give unit:n with one of {', '.join(UNITS)}, such as token:5"
            )
        if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= 1000:
            raise RecipeError(f"shingle {text!r}: n must be a whole number from 1 to 1000, such as {unit}:5")
        return cls(unit, int(count))

    def __str__(self) -> str:
        return f"{self.unit}:{self.n}"


@dataclass(frozen=True)
class Recipe:
    """What to call a duplicate, and which copy stays. Every field can be given on the command line under its own name.

    `bands`, `rows` and `sieve_cut` may be left to the solver (None); `gpu_dedup.pipeline.settle` fills them, and only a
    settled recipe has a fingerprint. Shares (threshold, recall) are kept as whole millionths.
    """

    method: str = "minhash"
    text_field: tuple[str, ...] = ()  # none named: text, or what the pipeline guesses in its stead
    pretokenized: str | None = None  # this field, a list of tokens, is the text: its items are the units
    key_field: str | None = None  # rows of equal values in this field are copies; bloom: it is compared, not the text
    key_action: str | None = None  # ... of such copies: remove or flag; None: `action`
    id_field: str = "id"
    normalize: tuple[str, ...] | None = None  # None: nfkc,lower,whitespace for near copies, nothing for exact ones
    shingle: str = "token:5"
    min_shingles: int = 0
    strip: tuple[str, ...] = ()  # strings that do not count where a text begins or ends with them
    max_chars: int | None = None  # code points of the normalised text that count
    stop_shingles: tuple[str, ...] = ()
    on_no_text: str = "keep"
    on_bad_row: str = "error"
    on_bad_file: str = "error"
    threshold_ppm: int = 800_000
    recall_ppm: int = 980_000
    sketch: str = "minhash"  # fast: one hash a shingle instead of one a slot (kernels/fastsketch_ref.py)
    num_perm: int = 128
    bands: int | None = None
    rows: int | None = None
    seed: int = 0
    sieve_cut: int | None = None  # fewest equal slots that a candidate pair needs before it is verified
    distance: int = 3  # most bits in which the SimHashes of a candidate pair may differ
    weights: str = "set"  # of the terms of a SimHash: 1, how often they occur, or that times their rarity
    top_terms: int | None = None  # under weights=tfidf only so many terms, the heaviest, count; None: all
    df_checksum: str | None = None  # of the table of document frequencies; None: the one that the run counts
    search_distance: int | None = None  # cascade: fingerprints are searched so far out; None: as far as `distance`
    near_action: str | None = None  # cascade, level 1: remove or flag; None: `action`
    far_distance: int = 7  # cascade, level 2: most bits that may differ
    far_jaccard_ppm: int = 750_000  # ... least Jaccard similarity of the shingle sets
    far_edit_ppm: int = 750_000  # ... and least Levenshtein similarity of the normalised texts
    far_action: str | None = None  # ... remove or flag; None: `action`
    bucket_cap: int = 256  # a larger bucket does not give all its pairs
    cap_lowest: int = 32  # ... but each member with this many lowest ranks
    cap_splits: int = 8  # ... and is split by this many further keys
    cap_slots: int = 4  # ... of this many slots from outside the band
    capacity: int | None = None  # bloom, lshbloom: different rows that the filter is made for
    fp_rate_ppb: int = 1000  # ... and the share of new rows that it may take for seen, once it holds so many
    verify: str = "exact"
    edit_max_chars: int = 50_000  # a text longer than this never matches under verify=edit
    cluster: str = "representative"
    witness: str = "lowest"
    keep: str = "first"
    action: str = "remove"
    format: str | None = None  # of all files of the input; None: by their endings
    lines: bool = False  # plain text is a document for each line, not for each file
    limit: int | None = None  # only the first so many rows of the input exist

    def __post_init__(self) -> None:
        check_types(self, RecipeError)
        _choice("method", self.method, METHODS)
        _choice("sketch", self.sketch, SKETCHES)
        _choice("weights", self.weights, WEIGHTS)
        _choice("verify", self.verify, VERIFY)
        _choice("cluster", self.cluster, CLUSTER)
        _choice("witness", self.witness, WITNESS)
        _choice("action", self.action, ACTIONS)
        if self.format is not None:
            _choice("format", self.format, FORMATS)
        if self.lines and self.format not in (None, "txt"):
            raise RecipeError(f"lines is for plain text, and the format is {self.format}; drop one of the two options")
        _choice("on-no-text", self.on_no_text, ("keep", "drop"))
        _choice("on-bad-row", self.on_bad_row, ("error", "skip", "keep"))
        _choice("on-bad-file", self.on_bad_file, ("error", "skip"))
        if any(not name for name in self.text_field):
            raise RecipeError(f"text-field {','.join(self.text_field)!r} names no field; give one, such as text")
        if len(set(self.text_field)) != len(self.text_field):
            raise RecipeError(f"text-field {','.join(self.text_field)!r} names a field twice")
        if self.pretokenized is not None:
            self._check_pretokenized(self.pretokenized)
        elif self.shingle.partition(":")[0] == ITEM:
            raise RecipeError(
                f"shingle {self.shingle!r} counts items of lists; name their field with pretokenized, or use token"
            )
        if self.key_field == "":
            raise RecipeError("key-field '' names no field; give one, such as url")
        if self.key_field is not None and self.method == "lshbloom":
            raise RecipeError(
                f"key-field {self.key_field!r} is an exact key, and method lshbloom has filters of bands alone; use "
                "method bloom for keys"
            )
        if self.keyed:
            if self.keep == "none":
                raise RecipeError(
                    "keep none keeps no copy, and a key's rows need one that stays; drop key-field or keep"
                )
            if self.near and self.on_no_text == "drop":
                raise RecipeError(
                    f"on-no-text drop takes out rows that others of their key-field {self.key_field!r} would stay for; "
                    "drop one of the two"
                )
        elif self.key_action is not None and self.method in STREAMED:
            raise RecipeError(
                f"method {self.method} takes no key-action beside action; drop key-action, and use action"
            )
        elif self.key_action is not None:
            raise RecipeError("key-action is for copies by key-field, and there is none; name one, or drop key-action")
        if self.capacity is not None and not 1 <= self.capacity < 2**62:
            raise RecipeError(f"capacity {self.capacity} is outside 1 to 2**62; give the most rows that will come")
        if not 1 <= self.fp_rate_ppb < PPB:
            raise RecipeError(
                f"fp-rate {ppb_text(self.fp_rate_ppb)} is outside 0.000000001 to 0.999999999; give a share such as "
                "0.000001"
            )
        if self.method in STREAMED:
            plain = {"keep": "first", "cluster": "representative", "witness": "lowest", "verify": "exact"}
            for name, default in {**plain, "sieve_cut": None, "min_shingles": 0}.items():
                if getattr(self, name) != default:
                    raise RecipeError(
                        f"{name.replace('_', '-')} means nothing with method {self.method}, which keeps the first copy "
                        "as rows pass by and knows no pairs; drop it"
                    )
        if self.normalize is not None:
            for step in self.normalize:
                _choice("normalize step", step, NORMALIZE_STEPS)
            for one, other in (("nfc", "nfkc"), ("whitespace", "nospace")):
                if one in self.normalize and other in self.normalize:
                    raise RecipeError(f"normalize steps {one} and {other} exclude each other; drop one")
        ShingleSpec.parse(self.shingle)
        if not 0 < self.threshold_ppm <= PPM:
            raise RecipeError(f"threshold {self.threshold_ppm / PPM:g} is outside (0, 1]; give a share such as 0.8")
        if not 0 < self.recall_ppm < PPM:
            raise RecipeError(f"recall {self.recall_ppm / PPM:g} is outside (0, 1); give a share such as 0.98")
        if not MIN_SLOTS <= self.num_perm <= MAX_SLOTS:
            raise RecipeError(f"num-perm {self.num_perm} is outside {MIN_SLOTS} to {MAX_SLOTS}")
        if (self.bands is None) != (self.rows is None):
            raise RecipeError("bands and rows go together; give both, or neither to have them solved")
        if self.bands is not None and self.rows is not None:
            if self.bands < 1 or self.rows < 1:
                raise RecipeError(f"bands {self.bands} and rows {self.rows} must be 1 or more")
            if not 1 <= self.bands * self.rows <= MAX_SLOTS:
                raise RecipeError(
                    f"bands {self.bands} x rows {self.rows} = {self.bands * self.rows} slots; "
                    f"at most {MAX_SLOTS} are possible"
                )
        if not 0 <= self.seed < 2**64:
            raise RecipeError(f"seed {self.seed} is outside 0 to 2**64 - 1")
        if self.limit is not None and not 0 <= self.limit < 2**62:
            raise RecipeError(f"limit {self.limit} is outside 0 to 2**62")
        for name, least in (
            ("min_shingles", 0), ("bucket_cap", 2), ("cap_lowest", 1), ("cap_splits", 0), ("cap_slots", 1),
            ("edit_max_chars", 1), ("max_chars", 1),
        ):  # fmt: skip
            if getattr(self, name) is not None and not least <= getattr(self, name) <= LARGEST:
                option = name.replace("_", "-")
                raise RecipeError(f"{option} {getattr(self, name)} is outside {least} to {LARGEST}")
        if not 0 <= self.distance <= MAX_DISTANCE:
            raise RecipeError(
                f"distance {self.distance} is outside 0 to {MAX_DISTANCE}; give a number of bits, such as 3"
            )
        if not 0 <= self.far_distance <= BITS:
            raise RecipeError(
                f"far-distance {self.far_distance} is outside 0 to {BITS}; give a number of bits, such as 7"
            )
        if self.search_distance is not None and not 0 <= self.search_distance <= MAX_DISTANCE:
            raise RecipeError(
                f"search-distance {self.search_distance} is outside 0 to {MAX_DISTANCE}; give bits, such as 7"
            )
        for name in ("far_jaccard_ppm", "far_edit_ppm"):
            if not 0 < getattr(self, name) <= PPM:
                option = name.removesuffix("_ppm").replace("_", "-")
                raise RecipeError(
                    f"{option} {getattr(self, name) / PPM:g} is outside 0 to 1 (more than 0); give a share such as 0.75"
                )
        for name in ("near_action", "far_action", "key_action"):
            if getattr(self, name) is not None:
                _choice(name.replace("_", "-"), getattr(self, name), ACTIONS)
        if self.method == "cascade":
            self._check_cascade()
        if self.method == "simhash" and self.verify == "signature":
            raise RecipeError(
                "verify signature counts slots, and a SimHash has none: its measure is the distance; use verify none, "
                "or verify exact or edit for the true similarity"
            )
        if self.top_terms is not None and not 1 <= self.top_terms <= LARGEST:
            raise RecipeError(f"top-terms {self.top_terms} is outside 1 to {LARGEST}")
        if self.df_checksum is not None and not re.fullmatch("[0-9a-f]{32}", self.df_checksum):
            raise RecipeError(
                f"df-checksum {self.df_checksum!r} is not 32 hexadecimal digits, as a report's recipe has them"
            )
        for name in ("top_terms", "df_checksum"):
            if self.weights != "tfidf" and getattr(self, name) is not None:
                raise RecipeError(
                    f"{name.replace('_', '-')} is for weights tfidf, and weights {self.weights} has no use for it; "
                    "drop it, or choose weights tfidf"
                )
        if self.sieve_cut is not None and not 0 <= self.sieve_cut <= MAX_SLOTS:
            raise RecipeError(f"sieve-cut {self.sieve_cut} is outside 0 to {MAX_SLOTS}")
        kind, _, field = self.keep.partition(":")
        if kind in ("max", "min"):
            if not field:
                raise RecipeError(f"keep {self.keep!r} names no field; give {kind}:FIELD, such as {kind}:score")
        elif self.keep not in ("first", "longest", "shortest", "none"):
            raise RecipeError(
                f"keep {self.keep!r} is unknown; choose first, longest, shortest, max:FIELD, min:FIELD or none"
            )
        if self.keep == "none" and self.cluster == "connected":
            raise RecipeError(
                "keep none removes every row with a partner, so it has no clusters; drop --cluster connected"
            )
        if self.keep == "none" and self.witness == "best":
            raise RecipeError("keep none names the first match of each row, kept or not; drop --witness best")
        if self.witness == "best" and (self.cluster != "representative" or self.verify == "none"):
            raise RecipeError("witness best needs cluster representative and a verification; use witness lowest")

    def _check_cascade(self) -> None:
        """What levels cannot be."""
        if self.far_distance < self.distance:
            raise RecipeError(
                f"far-distance {self.far_distance} is under distance {self.distance}, where level 2 begins; raise it"
            )
        if self.search_distance is not None and not self.distance <= self.search_distance <= self.far_distance:
            raise RecipeError(
                f"search-distance {self.search_distance} is outside distance {self.distance} to far-distance "
                f"{self.far_distance}: less would lose pairs of level 1, more would find none of level 2"
            )
        given = [
            name
            for name, plain in (("cluster", "representative"), ("witness", "lowest"))
            if plain != getattr(self, name)
        ]
        given += ["keep none"] if self.keep == "none" else []
        if given:
            raise RecipeError(f"cascade decides by the rank rule alone; drop {' and '.join(given)}")
        if self.verify != "exact":
            raise RecipeError("cascade verifies by its levels; drop verify, and set far-jaccard and far-edit")
        if not self.banded:
            for name in BUCKETS:
                if getattr(self, name) != getattr(type(self), name):
                    option = name.removesuffix("_ppm").replace("_", "-")
                    raise RecipeError(
                        f"{option} is for bands, and this cascade has none: fingerprints are searched to {self.reach} "
                        f"bits, which is all of far-distance {self.far_distance}; drop it"
                    )
        if self.sketch == "fast":
            raise RecipeError("cascade has MinHash buckets; drop sketch fast")

    @property
    def leveled(self) -> bool:
        """True for the method with levels."""
        return self.method == "cascade"

    @property
    def bands_view(self) -> Recipe:
        """The recipe as bands, sieve and Jaccard verification see it: MinHash at level 2's similarity for cascade."""
        return self.with_(method="minhash", threshold_ppm=self.far_jaccard_ppm) if self.leveled else self

    @property
    def keyed(self) -> bool:
        """Rows of equal keys are copies, beside what texts say."""
        return self.key_field is not None and self.method not in STREAMED

    @property
    def key_flags(self) -> bool:
        """Copies by key are flagged, and go on as all other rows do."""
        return (self.key_action or self.action) == "flag"

    @property
    def near_flags(self) -> bool:
        """Matches of level 1 are flagged, and nothing is removed for them."""
        return (self.near_action or self.action) == "flag"

    @property
    def far_flags(self) -> bool:
        """The same of level 2."""
        return (self.far_action or self.action) == "flag"

    @property
    def reach(self) -> int:
        """Bits to which fingerprints are searched."""
        return self.distance if self.search_distance is None or not self.leveled else self.search_distance

    @property
    def banded(self) -> bool:
        """True for methods with sketches and bands. A cascade needs none whose search of fingerprints finds all of
        level 2, or that has no level 2."""
        return self.method in BANDED and not (self.leveled and self.reach >= self.far_distance)

    @property
    def printed(self) -> bool:
        """True for methods with SimHash fingerprints."""
        return self.method in PRINTED

    @property
    def sketched(self) -> bool:
        """True for methods that look at the shingles of texts, and so find near copies."""
        return self.banded or self.printed

    @property
    def near(self) -> bool:
        """True for methods that hold near copies against one another, so that each has a witness."""
        return self.sketched and self.method not in STREAMED

    def _check_pretokenized(self, field: str) -> None:
        """Refuse what needs a text, and call the units of shingles by their name."""
        if not field:
            raise RecipeError("pretokenized '' names no field; give one, such as input_ids")
        for name, given in (
            ("text-field", self.text_field),
            ("key-field", self.key_field if self.method in STREAMED else None),
            ("normalize", self.normalize),
            ("strip", self.strip),
            ("max-chars", self.max_chars),
            ("stop-shingles", self.stop_shingles),
        ):
            if given:
                raise RecipeError(
                    f"{name} is for texts, and pretokenized {field!r} makes rows lists of tokens; drop one"
                )
        if self.verify == "edit":
            raise RecipeError("verify edit compares characters, and rows are lists of tokens; use verify exact")
        if self.method == "cascade":
            raise RecipeError(
                "cascade compares characters at level 2, and rows are lists of tokens; use another method"
            )
        spec = ShingleSpec.parse(self.shingle)
        if spec.unit not in (ITEM, "token"):
            raise RecipeError(f"shingle {self.shingle!r} cuts texts, and rows are lists of tokens; use {ITEM}:{spec.n}")
        object.__setattr__(self, "shingle", f"{ITEM}:{spec.n}")

    @property
    def weighted(self) -> bool:
        """True for methods whose fingerprints need a table of document frequencies."""
        return self.printed and self.weights == "tfidf"

    @property
    def steps(self) -> tuple[str, ...]:
        """Normaliser steps that are on, in the fixed order."""
        chosen = self.normalize
        if self.pretokenized is not None:
            return ()
        if chosen is None:
            chosen = ("nfkc", "lower", "whitespace") if self.method not in ("exact", "bloom") else ()
        return tuple(step for step in NORMALIZE_STEPS if step in chosen)

    @property
    def trims(self) -> bool:
        """Whether anything is taken from the ends of normalised texts."""
        return bool(self.strip) or self.max_chars is not None

    @property
    def texts_from(self) -> tuple[str, ...]:
        """The fields that a row's text is made of: what is compared."""
        if self.key_field is not None and self.method in STREAMED:
            return (self.key_field,)
        if self.pretokenized is not None:
            return (self.pretokenized,)
        return self.text_field or ("text",)

    @property
    def spec(self) -> ShingleSpec:
        return ShingleSpec.parse(self.shingle)

    @property
    def keep_field(self) -> str | None:
        """Field that decides which copy is kept; None where no field does."""
        kind, _, field = self.keep.partition(":")
        return field if kind in ("max", "min") else None

    @property
    def slots(self) -> int:
        """Sketch slots that are computed: bands x rows."""
        if self.bands is None or self.rows is None:
            raise RecipeError("the recipe is not settled: bands and rows are still to be solved")
        return self.bands * self.rows

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. Lists for tuples, `normalize` and `text_field` spelled out."""
        out = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        out["normalize"] = list(self.steps)
        out["text_field"] = list(self.texts_from) if self.pretokenized is None else []
        return out

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """Reverse of `as_dict`; an unknown name is refused."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise RecipeError(f"recipe field {name!r} is unknown to this version of gpu-dedup")
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**plain)

    def with_(self, **changes: Any) -> Recipe:
        return replace(self, **changes)

    def fingerprint(self) -> str:
        """32 hex digits over every field that changes the answer, the definitions' version and the Unicode version."""
        if self.banded:
            _ = self.slots
        if self.weighted and self.df_checksum is None:
            raise RecipeError("the recipe is not settled: its document frequencies are still to be counted")
        from gpu_dedup.kernels.unicode import UNICODE_VERSION

        parts = {"recipe": self.as_dict(), "definitions": DEFINITIONS, "unicode": UNICODE_VERSION}
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
