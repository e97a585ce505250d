"""From decisions about heads to an outcome for every row: gone or not, why, and which row stands for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, ROW_BAD, ROW_TEXT, U8, Bool, absent
from gpu_dedup.cluster import Decision
from gpu_dedup.recipe import STREAMED, Recipe
from gpu_dedup.spool import Numbers

STAYS, EXACT, NEAR, EXACT_NEAR, NO_TEXT, BAD_ROW, BLOOM, KEY = range(8)
REASONS = ("", "exact", "near", "exact+near", "no-text", "bad-row", "bloom", "key")

KEPT_WITNESS = "kept-witness"
CHAIN = "chain"
PROBABILISTIC = "probabilistic"


@dataclass
class Outcome:
    """One entry per global row; row numbers are global, -1 for none.

    reason   uint8[n], index into REASONS; 0 = no reason to go. Of a row that a filter has seen nothing else is known
    witness  int64[n] the kept row that stands for a row with a reason exact, near, exact+near or key
    shared, union int64[n]  whole numbers behind the similarity with the witness; -1 where it is not known by counting
    linked, linked_shared, linked_union int64[n]  cluster=connected: the neighbour that linked the row; of a copy by
             key, the first row of its key, where that does not stay itself
    distance int64[n] bits between the fingerprints of a near copy and its witness; -1 where nobody asked
    level    int64[n] or None: of a cascade, the level that a near copy was caught by; -1 elsewhere
    flagged  bool[n] or None: of a cascade and with keys, copies that are only flagged
    """

    reason: U8
    witness: I64
    shared: I64
    union: I64
    linked: I64
    linked_shared: I64
    linked_union: I64
    distance: I64
    level: I64 | None = None
    flagged: Bool | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def nothing(cls, n: int, recipe: Recipe) -> Outcome:
        """No row goes; the columns that the recipe has no use for take no memory."""
        found = [np.full(n, -1, np.int64) if recipe.near else absent(n) for _ in range(2)]
        links = (recipe.cluster == "connected" or recipe.keyed, recipe.cluster == "connected")
        linked = [np.full(n, -1, np.int64) if links[bool(i)] else absent(n) for i in range(3)]
        distance = np.full(n, -1, np.int64) if recipe.printed else absent(n)
        witness = absent(n) if recipe.method in STREAMED else np.full(n, -1, np.int64)
        none = np.zeros(n, np.uint8)
        return cls(none, witness, found[0], found[1], linked[0], linked[1], linked[2], distance)

    @property
    def numbers(self) -> tuple[I64, ...]:
        """The columns that say something of a match, of those that there are."""
        every = (self.shared, self.union, self.linked, self.linked_shared, self.linked_union, self.distance, self.level)
        return tuple(column for column in every if column is not None and column.flags.writeable)

    def flags(self, recipe: Recipe) -> Bool:
        """bool[n]: rows that are in the log and in the output."""
        if self.flagged is not None:
            return self.flagged & np.isin(self.reason, (EXACT, NEAR, EXACT_NEAR, KEY))
        return np.asarray(np.isin(self.reason, (EXACT, NEAR, EXACT_NEAR, BLOOM)) & (recipe.action == "flag"), np.bool_)

    @property
    def near(self) -> int:
        """Rows that go because of a near copy, or are named for it under action=flag."""
        near = (self.reason == NEAR) | (self.reason == EXACT_NEAR)
        return int(np.count_nonzero(near if self.flagged is None else near & ~self.flagged))


def assemble(
    recipe: Recipe,
    status: U8,
    member: I64,
    its_head: I64,
    ranked: Numbers | None,
    decision: Decision | None,
    without_text: I64,
) -> Outcome:
    """Outcome of every row.

    status        uint8[n]
    member        int64[q] global rows that are copies of the head of their exact class, ascending
    its_head      int64[q] global row of each one's head
    ranked        global rows of the heads that went into LSH, in keeper order; decision is about these
    without_text  rows that have nothing to compare; they go if the recipe drops them
    """
    out = Outcome.nothing(len(status), recipe)
    if recipe.on_bad_row == "skip":
        out.reason[status == ROW_BAD] = BAD_ROW
    if recipe.on_no_text == "drop":
        out.reason[without_text] = NO_TEXT

    if decision is not None:
        assert ranked is not None
        gone = np.flatnonzero(decision.witness >= 0)
        here = ranked.take(gone)
        out.reason[here] = NEAR
        out.witness[here] = ranked.take(decision.witness[gone])
        out.shared[here] = decision.shared[gone]
        out.union[here] = decision.union[gone]
        if recipe.printed:
            out.distance[here] = decision.distance[gone]
        if decision.level is not None and decision.flagged is not None:
            out.level, out.flagged = np.full(len(status), -1, np.int64), np.zeros(len(status), np.bool_)
            out.level[here] = decision.level[gone]
            out.flagged[here] = decision.flagged[gone]
        if recipe.cluster == "connected":
            tied = gone[decision.linked[gone] >= 0]
            here = ranked.take(tied)
            out.linked[here] = ranked.take(decision.linked[tied])
            out.linked_shared[here] = decision.linked_shared[tied]
            out.linked_union[here] = decision.linked_union[tied]

    if recipe.keep == "none":
        _all_copies_go(out, member, its_head)
    else:
        head_goes = out.reason[its_head] == NEAR
        if out.flagged is not None and out.level is not None:
            if recipe.action == "remove":  # a flagged head is still there, and stands for its copies
                head_goes &= ~out.flagged[its_head]
            out.flagged[member] = np.where(head_goes, out.flagged[its_head], recipe.action == "flag")
            out.level[member] = np.where(head_goes, out.level[its_head], -1)
        out.reason[member] = np.where(head_goes, EXACT_NEAR, EXACT)
        out.witness[member] = np.where(head_goes, out.witness[its_head], its_head)
        for column in (out.shared, out.union, out.distance):
            if column.flags.writeable:
                column[member] = np.where(head_goes, column[its_head], -1)
        if recipe.cluster == "connected" and recipe.near:
            out.linked[member] = its_head
    if recipe.on_no_text == "drop":  # a text without units goes as such, also where it has exact copies
        out.reason[without_text] = NO_TEXT
        for column in (out.witness, *out.numbers):
            column[without_text] = -1
    return out


def join_keys(recipe: Recipe, out: Outcome, rows: I64, first: I64) -> None:
    """Copies by key go as their first row does: they name it where it stays, else the row that stays for it.

    rows   int64[q] rows whose key another row has that comes before them in keeper order
    first  int64[q] the first row of each one's key, none of `rows`
    A row that has a reason to go, or to be flagged, already keeps it; there are such where keys only flag.
    """
    if out.flagged is None:
        out.flagged = np.zeros(len(out.reason), np.bool_)
        if recipe.action == "flag":
            out.flagged |= out.reason != STAYS
    free = out.reason[rows] == STAYS
    rows, first = rows[free], first[free]
    gone = (out.reason[first] != STAYS) & ~out.flagged[first]
    out.reason[rows] = KEY
    out.witness[rows] = np.where(gone, out.witness[first], first)
    out.linked[rows] = np.where(gone, first, -1)
    out.flagged[rows] = recipe.key_flags


def _all_copies_go(out: Outcome, member: I64, its_head: I64) -> None:
    """keep=none: a class of several rows goes whole; the head names its first copy, every copy names the head."""
    out.reason[member] = EXACT
    out.witness[member] = its_head
    heads, first = np.unique(its_head, return_index=True)
    out.reason[heads] = EXACT
    out.witness[heads] = member[first]
    for column in out.numbers:
        column[member] = -1
        column[heads] = -1


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
