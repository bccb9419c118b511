"""The stories of the generated word problems as plain data, all of it written for this project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    name: str
    numbers: dict[str, Sequence[int]]
    """Values to draw from, by the letter that stands for them; `{k_times}` is a number in words (`three times`)."""
    question: str
    steps: tuple[str, ...]
    """Sentences with one calculation `[letter: expression]` each; the letter then stands for its result."""
    things: tuple[str, ...] = ("",)
    """Words from which `{thing}` is drawn."""


# Names with their pronouns; `{name}` and `{other}` are two of them.
PEOPLE = (
    *(("Amara", "she"), ("Bruno", "he"), ("Chen", "he"), ("Daria", "she"), ("Elif", "she"), ("Farid", "he")),
    *(("Greta", "she"), ("Hugo", "he"), ("Ines", "she"), ("Jonas", "he"), ("Kofi", "he"), ("Leila", "she")),
    *(("Mateo", "he"), ("Nadia", "she"), ("Omar", "he"), ("Petra", "she"), ("Quinn", "he"), ("Rosa", "she")),
    *(("Sven", "he"), ("Tessa", "she"), ("Umar", "he"), ("Vera", "she"), ("Wanda", "she"), ("Yusuf", "he")),
)
PRONOUNS = {"she": "her", "he": "his"}
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}

STORIES = (
    Story(
        "picking",
        {"a": range(10, 100, 2), "b": range(3, 60)},
        "{name} picked {a} {thing} on Saturday and half as many on Sunday. {She} gave {b} of them to a neighbor. How "
        "many {thing} does {name} have left?",
        (
            "{name} picked [c: a/2] {thing} on Sunday.",
            "On both days together {she} picked [d: a+c] {thing}.",
            "After the gift {she} has [e: d-b] {thing} left.",
        ),
        ("apples", "plums", "mushrooms", "walnuts", "lemons"),
    ),
    Story(
        "market",
        {"a": range(2, 9), "p": range(2, 8), "b": range(2, 7), "q": range(3, 12), "n": (50, 100)},
        "At the market {name} buys {a} {thing} for ${p} each and {b} jars of honey for ${q} each. {She} pays with "
        "${n}. How many dollars does {she} get back?",
        (
            "The {thing} cost [c: $a*p].",
            "The honey costs [d: $b*q].",
            "{name} has to pay [e: $c+d] in total.",
            "{She} gets back [f: $n-e].",
        ),
        ("melons", "loaves of bread", "cabbages", "bunches of flowers"),
    ),
    Story(
        "wages",
        {"r": range(11, 31), "h": range(3, 9), "d": range(2, 6), "w": range(2, 13)},
        "{name} earns ${r} an hour at a {thing}. {She} works {h} hours a day on {d} days of every week. How much money "
        "does {she} earn in {w} weeks?",
        (
            "In a week {name} works [c: h*d] hours.",
            "So {she} earns [e: $r*c] a week.",
            "In {w} weeks {she} earns [f: $e*w].",
        ),
        ("bakery", "library", "garage", "hotel"),
    ),
    Story(
        "reading",
        {"n": range(120, 401, 10), "a": range(10, 41), "k": range(2, 4), "d": range(2, 9)},
        "{name} is reading a {thing} of {n} pages. {She} read {a} pages on Monday and {k_times} as many on Tuesday. "
        "{She} wants to read the rest in {d} days, the same number of pages on each of them. How many pages a day is "
        "that?",
        (
            "On Tuesday {name} read [b: a*k] pages.",
            "On the first two days that makes [c: a+b] pages.",
            "There are [e: n-c] pages left.",
            "So {she} has to read [f: e/d] pages a day.",
        ),
        ("novel", "travel book", "biography"),
    ),
    Story(
        "boxes",
        {"a": range(20, 121), "b": range(20, 121), "c": (6, 8, 10, 12), "p": range(4, 16)},
        "A bakery makes {a} {thing} in the morning and {b} in the afternoon. They go into boxes of {c}, and every box "
        "is sold for ${p}. How much money does the bakery take in when it sells all of them?",
        (
            "The bakery makes [d: a+b] {thing}.",
            "They fill [e: d/c] boxes.",
            "For these the bakery gets [f: $e*p].",
        ),
        ("muffins", "rolls", "pretzels"),
    ),
    Story(
        "school",
        {"n": range(120, 901, 20), "p": range(10, 46, 5), "q": range(10, 46, 5)},
        "{n} students go to a {thing}. {p}% of them walk there and {q}% of them come by bus. The others come by "
        "bicycle. How many students come by bicycle?",
        (
            "[a: p/100*n] students walk.",
            "[b: q/100*n] students come by bus.",
            "Together these are [c: a+b] students.",
            "So [d: n-c] students come by bicycle.",
        ),
        ("school", "music school", "language school"),
    ),
    Story(
        "ages",
        {"k": range(2, 5), "a": range(3, 9), "m": range(20, 36), "y": range(2, 16)},
        "{name} is {k_times} as old as {her} {thing}, who is {a} years old. Their mother is {m} years older than "
        "{name}. How old will their mother be in {y} years?",
        (
            "{name} is [b: k*a] years old.",
            "Their mother is [c: b+m] years old now.",
            "In {y} years she will be [d: c+y].",
        ),
        ("brother", "sister", "little brother"),
    ),
    Story(
        "hens",
        {"a": range(4, 25), "e": range(3, 7), "w": range(2, 9), "p": range(3, 8)},
        "Each of {a} {thing} of {name} lays {e} eggs a week. {She} sells the eggs for ${p} a dozen. How much money do "
        "the eggs of {w} weeks bring in?",
        (
            "The {thing} lay [b: a*e] eggs a week.",
            "In {w} weeks that makes [c: b*w] eggs.",
            "These are [d: c/12] dozen.",
            "They bring in [f: $d*p].",
        ),
        ("hens", "ducks"),
    ),
    Story(
        "trip",
        {"h": range(2, 7), "v": range(30, 66, 5), "g": range(2, 5), "u": range(20, 56, 5), "m": (20, 25, 30, 40)},
        "{name} drives a {thing} for {h} hours at {v} miles an hour and then for {g} hours at {u} miles an hour. It "
        "needs a gallon of gas for every {m} miles. How many gallons of gas does the trip take?",
        (
            "The first part of the trip is [a: h*v] miles long.",
            "The second part is [b: g*u] miles long.",
            "The whole trip is [c: a+b] miles long.",
            "It takes [d: c/m] gallons.",
        ),
        ("van", "taxi", "truck"),
    ),
    Story(
        "saving",
        {"n": range(80, 401, 5), "a": range(10, 70), "g": range(5, 31, 5), "s": range(4, 21)},
        "{name} wants to buy a {thing} for ${n}. {She} has ${a}, and {her} uncle gives {name} another ${g}. From now "
        "on {name} saves ${s} a week. After how many weeks can {she} buy it?",
        (
            "Together with the gift {name} has [b: $a+g].",
            "{She} still needs [c: $n-b].",
            "That takes [d: c/s] weeks.",
        ),
        ("bicycle", "guitar", "tent", "camera"),
    ),
    Story(
        "sharing",
        {"a": range(5, 41), "k": range(2, 6), "b": range(2, 40)},
        "{other} has {k_times} as many {thing} as {name}. {name}'s cousin has {b} fewer {thing} than {other}. {name} "
        "has {a} {thing}. How many {thing} do the three of them have together?",
        (
            "{other} has [c: k*a] {thing}.",
            "The cousin has [d: c-b] {thing}.",
            "Together they have [e: a+c+d] {thing}.",
        ),
        ("stamps", "marbles", "stickers", "seashells"),
    ),
    Story(
        "fence",
        {"a": range(8, 41), "b": range(5, 31), "g": range(2, 6), "p": range(6, 26)},
        "The {thing} of {name} is a rectangle {a} meters long and {b} meters wide. {She} puts a fence around it but "
        "leaves {g} meters open for a gate. One meter of fence costs ${p}. How much does the fence cost?",
        (
            "Once around the {thing} is [c: 2*(a+b)] meters.",
            "Without the gate that is [d: c-g] meters.",
            "The fence costs [e: $d*p].",
        ),
        ("garden", "orchard", "field"),
    ),
    Story(
        "practice",
        {"m": range(10, 61, 5), "w": range(2, 25)},
        "{name} practices the {thing} for {m} minutes every day of the week. How many hours does {she} practice in {w} "
        "weeks?",
        (
            "In a week {name} practices for [a: m*7] minutes.",
            "In {w} weeks that makes [b: a*w] minutes.",
            "That is [c: b/60] hours.",
        ),
        ("piano", "violin", "trumpet", "drums"),
    ),
    Story(
        "discount",
        {"p": range(20, 201, 10), "d": range(5, 61, 5), "n": range(2, 9)},
        "A {thing} used to cost ${p}. This week it is {d}% cheaper. How much does {name} pay for {n} of them?",
        (
            "The price goes down by [a: $d/100*p].",
            "One {thing} now costs [b: $p-a].",
            "For {n} of them {name} pays [c: $b*n].",
        ),
        ("chair", "lamp", "backpack", "jacket"),
    ),
    Story(
        "seats",
        {"a": range(6, 31), "b": range(8, 31), "c": range(5, 90)},
        "A {thing} has {a} rows of {b} seats. Tonight {c} seats stay empty. How many people are sitting there?",
        (
            "There are [d: a*b] seats.",
            "So there are [e: d-c] people.",
        ),
        ("theater", "cinema", "circus tent"),
    ),
)
