"""From decisions about heads to an outcome for every row: gone or not, why, and which row stands for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, ROW_BAD, ROW_TEXT, U8, Bool, absent
from gpu_dedup.cluster import Gone
from gpu_dedup.recipe import Recipe
from gpu_dedup.spool import Numbers

STAYS, EXACT, NEAR, EXACT_NEAR, NO_TEXT, BAD_ROW, BLOOM, KEY = range(8)
NUMBERS = (
    "shared",
    "union",
    "linked",
    "linked_shared",
    "linked_union",
    "distance",
    "level",
    "edit_same",
    "edit_longest",
)
REASONS = ("", "exact", "near", "exact+near", "no-text", "bad-row", "bloom", "key")

KEPT_WITNESS = "kept-witness"
CHAIN = "chain"
PROBABILISTIC = "probabilistic"


@dataclass
class Outcome:
    """What becomes of n rows: a byte for each, and numbers for those that have a witness. Row numbers are global.

    reason   uint8[n], index into REASONS; 0 = no reason to go. Of a row that a filter has seen nothing else is known
    rows     int64[q], ascending: rows with a reason exact, near, exact+near or key; the other arrays have an entry for
             each
    witness  int64[q] the kept row that stands for the row
    shared, union int64[q]  whole numbers behind the similarity with the witness; -1 where it is not known by counting
    linked, linked_shared, linked_union int64[q]  cluster=connected: the neighbour that linked the row; of a copy by
             key, the first row of its key, where that does not stay itself
    distance int64[q] bits between the fingerprints of a near copy and its witness; -1 where nobody asked
    level    int64[q]: of a cascade, the level that a near copy was caught by; -1 for others
    edit_same, edit_longest  int64[q]: of a cascade, whole numbers behind the Levenshtein similarity with the witness of
             a near copy of level 2; -1 for others
    flagged  bool[q]: of a cascade and with keys, copies that are only flagged

    Numbers that the recipe has no use for are None.
    """

    reason: U8
    rows: I64
    witness: I64
    shared: I64 | None = None
    union: I64 | None = None
    linked: I64 | None = None
    linked_shared: I64 | None = None
    linked_union: I64 | None = None
    distance: I64 | None = None
    level: I64 | None = None
    edit_same: I64 | None = None
    edit_longest: I64 | None = None
    flagged: Bool | None = None

    @classmethod
    def nothing(cls, n: int) -> Outcome:
        """No row has a witness."""
        return cls(np.zeros(n, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))

    def about(self, rows: I64) -> About:
        """What is known of these rows."""
        at, there = _places(self.rows, rows)
        at = at[there]

        def of(column: I64 | None) -> I64:
            if column is None:
                return absent(len(rows))
            out = np.full(len(rows), -1, np.int64)
            out[there] = column[at]
            return out

        return About(**{name: of(getattr(self, name)) for name in ("witness", *NUMBERS)})

    def flags(self, recipe: Recipe) -> Bool:
        """bool[n]: rows that are in the log and in the output."""
        if self.flagged is not None:
            out = np.zeros(len(self.reason), np.bool_)
            out[self.rows[self.flagged]] = True
            return out
        return np.asarray(np.isin(self.reason, (EXACT, NEAR, EXACT_NEAR, BLOOM)) & (recipe.action == "flag"), np.bool_)

    @property
    def near(self) -> int:
        """Rows that go because of a near copy, or are named for it under action=flag."""
        near = np.isin(self.reason, (NEAR, EXACT_NEAR))
        if self.flagged is not None:
            near[self.rows[self.flagged]] = False
        return int(np.count_nonzero(near))


@dataclass(frozen=True)
class About:
    """Numbers of chosen rows, see `Outcome`; -1 where there is none."""

    witness: I64
    shared: I64
    union: I64
    linked: I64
    linked_shared: I64
    linked_union: I64
    distance: I64
    level: I64
    edit_same: I64
    edit_longest: I64


def assemble(
    recipe: Recipe,
    status: U8,
    member: I64,
    its_head: I64,
    ranked: Numbers | None,
    decision: Gone | None,
    without_text: I64,
) -> Outcome:
    """Outcome of every row.

    status        uint8[n]
    member        int64[q] global rows that are copies of the head of their exact class, ascending
    its_head      int64[q] global row of each one's head
    ranked        global rows of the heads that went into LSH, in keeper order; decision is about these
    without_text  rows that have nothing to compare; they go if the recipe drops them
    """
    reason = np.zeros(len(status), np.uint8)
    if recipe.on_bad_row == "skip":
        reason[status == ROW_BAD] = BAD_ROW
    near = _near(ranked, decision, recipe)
    reason[near["rows"]] = NEAR
    if recipe.keep == "none":
        exact = _whole_classes(member, its_head, near)
        near = {name: column[~np.isin(near["rows"], exact["rows"])] for name, column in near.items()}
        reason[exact["rows"]] = EXACT
    else:
        exact, head_goes = _copies(recipe, member, its_head, near)
        reason[member] = np.where(head_goes, np.uint8(EXACT_NEAR), np.uint8(EXACT))
    if recipe.on_no_text == "drop":  # a text without units goes as such, also where it has exact copies
        reason[without_text] = NO_TEXT
        with_text = reason[exact["rows"]] != NO_TEXT
        if not with_text.all():
            exact = {name: column[with_text] for name, column in exact.items()}
    return Outcome(reason, **_merged(near, exact))


def _near(ranked: Numbers | None, decision: Gone | None, recipe: Recipe) -> dict[str, Any]:
    """The columns of an outcome for heads that go, by row."""
    none = np.zeros(0, np.int64)
    if ranked is None or decision is None:
        return {"rows": none, "witness": none}
    rows = ranked.take(decision.head)
    out: dict[str, Any] = {"rows": rows, "witness": ranked.take(decision.witness)}
    out |= {"shared": decision.shared, "union": decision.union}
    if decision.linked is not None:
        linked = np.full(len(rows), -1, np.int64)
        tied = np.flatnonzero(decision.linked >= 0)
        linked[tied] = ranked.take(decision.linked[tied])
        out |= {
            "linked": linked,
            "linked_shared": decision.linked_shared,
            "linked_union": decision.linked_union,
        }
    others = {name: getattr(decision, name) for name in ("distance", "level", "edit_same", "edit_longest", "flagged")}
    out |= {name: column for name, column in others.items() if column is not None}
    if recipe.keep in ("first", "none"):
        return out
    order = np.argsort(rows, kind="stable")
    return {name: column[order] for name, column in out.items()}


def _copies(recipe: Recipe, member: I64, its_head: I64, near: dict[str, Any]) -> tuple[dict[str, Any], Bool]:
    """The columns for exact copies, which go for their head or, where it goes itself, for its witness; and bool[q]
    where that is so."""
    at, head_goes = _places(near["rows"], its_head)
    if "flagged" in near and recipe.action == "remove":  # a flagged head is still there, and stands for its copies
        head_goes[head_goes] = ~near["flagged"][at[head_goes]]
    at = at[head_goes]
    witness = its_head.copy()
    witness[head_goes] = near["witness"][at]
    out: dict[str, Any] = {"rows": member, "witness": witness}
    for name in NUMBERS:
        if name in near:
            out[name] = np.full(len(member), -1, np.int64)
            if not name.startswith("linked"):
                out[name][head_goes] = near[name][at]
    if "linked" in near:
        out["linked"] = its_head
    if "flagged" in near:
        out["flagged"] = np.full(len(member), recipe.action == "flag")
        out["flagged"][head_goes] = near["flagged"][at]
    return out, head_goes


def _whole_classes(member: I64, its_head: I64, near: dict[str, Any]) -> dict[str, Any]:
    """keep=none: a class of several rows goes whole; the head names its first copy, every copy names the head."""
    heads, first = np.unique(its_head, return_index=True)
    rows = np.concatenate([member, heads])
    order = np.argsort(rows, kind="stable")
    out: dict[str, Any] = {"rows": rows[order], "witness": np.concatenate([its_head, member[first]])[order]}
    out |= {name: np.full(len(rows), -1, np.int64) for name in NUMBERS if name in near}
    if "flagged" in near:
        at, there = _places(near["rows"], out["rows"])
        out["flagged"] = np.zeros(len(rows), np.bool_)
        out["flagged"][there] = near["flagged"][at[there]]
    return out


def join_keys(recipe: Recipe, out: Outcome, rows: I64, first: I64) -> Outcome:
    """Copies by key go as their first row does: they name it where it stays, else the row that stays for it.

    rows     int64[q] rows whose key another row has that comes before them in keeper order, ascending
    first    int64[q] the first row of each one's key, none of `rows`
    returns  the outcome with them; `out` is used up
    A row that has a reason to go, or to be flagged, already keeps it; there are such where keys only flag.
    """
    all_flagged = out.flagged is None and recipe.action == "flag"
    flagged = np.full(len(out.rows), all_flagged) if out.flagged is None else out.flagged
    free = out.reason[rows] == STAYS
    rows, first = rows[free], first[free]
    gone = out.reason[first] != STAYS
    at, there = _places(out.rows, first)
    gone[there] &= ~flagged[at[there]]
    gone[~there] &= not all_flagged
    witness = first.copy()
    witness[gone] = -1
    witness[gone & there] = out.witness[at[gone & there]]
    old: dict[str, Any] = {"rows": out.rows, "witness": out.witness, "flagged": flagged}
    new: dict[str, Any] = {"rows": rows, "witness": witness, "flagged": np.full(len(rows), recipe.key_flags)}
    for name in NUMBERS:
        column = getattr(out, name)
        if column is not None or name == "linked":
            old[name] = np.full(len(out.rows), -1, np.int64) if column is None else column
            new[name] = np.full(len(rows), -1, np.int64)
    new["linked"][gone] = first[gone]
    out.reason[rows] = KEY
    return Outcome(out.reason, **_merged(old, new))


def _places(rows: I64, wanted: I64) -> tuple[I64, Bool]:
    """Place of each wanted row among `rows`, ascending, and whether it is there."""
    at = np.searchsorted(rows, wanted)
    there = at < len(rows)
    there[there] = rows[at[there]] == wanted[there]
    return at, there


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The columns of both, by row. Those given are let go, so that no more than one of them is there twice."""
    if not len(one["rows"]):
        return {name: other[name] for name in one}
    if not len(other["rows"]):
        return one
    order = np.argsort(np.concatenate([one["rows"], other["rows"]]), kind="stable")
    return {name: np.concatenate([one.pop(name), other.pop(name)])[order] for name in list(one)}


def guarantee(recipe: Recipe) -> str:
    """What the log may claim for a near removal under this recipe."""
    if recipe.verify in ("signature", "none"):
        return PROBABILISTIC
    return CHAIN if recipe.cluster == "connected" or recipe.keep == "none" else KEPT_WITNESS


def keep_mask(recipe: Recipe, status: U8, outcome: Outcome) -> Bool:
    """bool[n]: rows that are written."""
    written = (status == ROW_TEXT) | (status == ROW_BAD)
    gone = (outcome.reason != STAYS) & ~outcome.flags(recipe)
    return np.asarray(written & ~gone, bool)
