"""The words and sentences that generated tasks are made of, in English.

`WORDS` names tables and columns and fills text cells; every fourth word is held out. `PHRASINGS` holds the questions.
Leaves out everything about databases: `generator.py` puts the pieces together and checks what comes out.
"""

from __future__ import annotations

import random

_WORDS = """
river stone cloud garden window bridge market winter forest island planet rocket silver copper golden yellow purple
orange doctor lawyer farmer driver singer writer painter teacher student manager worker captain soldier player coach
artist editor tailor baker city country region street village station airport harbor castle museum church school
college factory hospital hotel price cost salary budget profit revenue weight height length width depth speed volume
score rating grade point name title author genre label brand model color size shape status code serial version item
product stock month week hour season period team league club goal match race winner round game event medal dog horse
sheep tiger lion eagle falcon rabbit monkey whale shark salmon turtle spider beetle parrot camel zebra panda rome
paris london berlin madrid vienna dublin oslo prague athens cairo delhi tokyo lima boston denver austin dallas miami
bread butter cheese pepper sugar honey coffee lemon melon banana carrot potato tomato onion garlic ginger rice pasta
soup salad engine wheel pedal mirror ladder hammer screw bucket barrel basket bottle kettle candle carpet pillow
blanket jacket trouser piano guitar violin trumpet drum flute opera ballet drama comedy novel poem letter paper
pencil marker ruler eraser folder maple cedar willow birch rose tulip daisy lily fern moss grass wheat barley cotton
silk linen leather anna peter maria david laura simon clara oscar helen victor emma lucas nina felix julia martin
sofia daniel capacity distance altitude latitude duration quantity discount balance payment deposit income expense
mileage density department division category section chapter language nation religion culture industry company
agency customer supplier alpha beta gamma delta omega prime major minor senior junior north south east west upper
lower inner outer
"""
WORDS = tuple(_WORDS.split())
HELD_OUT_WORDS = WORDS[::4]
TRAIN_WORDS = tuple(word for word in WORDS if word not in set(HELD_OUT_WORDS))

_ONSETS = [*"bcdfghjklmnprstvwz", "st", "tr", "pl", "br", "ch", "sh", "gr", "fl"]
_VOWELS = [*"aeiou", "ai", "ea", "ou"]
_CODAS = ["", "", "n", "r", "s", "t", "l", "m", "ck", "nd"]

PHRASINGS: dict[str, tuple[str, ...]] = {
    "select": (
        "What is the {column} where {condition}?",
        "Show the {column} of rows with {condition}.",
        "List {column} for which {condition}.",
        "Which {column} has {condition}?",
        "Give me the {column} when {condition}.",
        "Find {column} of entries where {condition}.",
        "Tell me every {column} whose {condition}.",
        "Return the {column} for {condition}.",
    ),
    "count": (
        "How many rows have {condition}?",
        "Count the rows where {condition}.",
        "What is the number of rows with {condition}?",
        "How many entries are there with {condition}?",
        "Give the count of rows for which {condition}.",
        "Tell me how many records have {condition}.",
        "In how many rows {condition}?",
        "Number of entries where {condition}?",
    ),
    "extreme": (
        "What is the {extreme} {column}?",
        "Find the {extreme} {column}.",
        "Give me the {extreme} value of {column}.",
        "Which is the {extreme} {column} in the table?",
        "Show the {extreme} {column} of all rows.",
        "Tell me the {extreme} {column}.",
        "Return the {extreme} {column} recorded.",
        "Report the {extreme} {column} overall.",
    ),
    "summary": (
        "What is the {summary} {column}?",
        "Find the {summary} {column} of all rows.",
        "Give me the {summary} of {column}.",
        "Compute the {summary} {column}.",
        "Show the {summary} {column} overall.",
        "Tell me the {summary} of column {column}.",
        "Return the {summary} {column} in the table.",
        "Calculate the {summary} of {column} over all rows.",
    ),
    "ranking": (
        "Which {column} has the {extreme} {number}?",
        "What is the {column} with the {extreme} {number}?",
        "Find the {column} of the row with the {extreme} {number}.",
        "Show the {column} whose {number} is the {extreme}.",
        "Give me the {column} that has the {extreme} {number}.",
        "Tell me which {column} has the {extreme} {number}.",
        "Return the {column} having the {extreme} {number}.",
        "Name the {column} of the entry with the {extreme} {number}.",
    ),
    "insert": (
        "Insert a row with {values}.",
        "Add a row: {values}.",
        "Add a new entry with {values}.",
        "Create a row having {values}.",
        "Put in a new row where {values}.",
        "Please insert {values}.",
        "Append an entry with {values}.",
        "A new record has {values}; add it.",
    ),
    "update": (
        "Set {column} to {value} where {condition}.",
        "Change the {column} to {value} for rows with {condition}.",
        "Update {column} to {value} when {condition}.",
        "Make the {column} {value} where {condition}.",
        "For rows with {condition} set {column} to {value}.",
        "Modify {column} to be {value} if {condition}.",
        "Where {condition}, change {column} to {value}.",
        "Please update the {column} to {value} for {condition}.",
    ),
    "delete": (
        "Delete rows where {condition}.",
        "Remove all rows with {condition}.",
        "Delete the entries for which {condition}.",
        "Drop every row with {condition}.",
        "Erase rows whose {condition}.",
        "Please remove entries where {condition}.",
        "Get rid of rows with {condition}.",
        "Clear the records that have {condition}.",
    ),
}
EXTREMES = {"highest": "MAX", "largest": "MAX", "lowest": "MIN", "smallest": "MIN"}
SUMMARIES = {"total": "SUM", "sum": "SUM", "average": "AVG", "mean": "AVG"}
COMPARISONS = {"is": "=", "=": "=", "is above": ">", "is greater than": ">", "is below": "<", "is less than": "<"}


def pseudo_word(rng: random.Random) -> str:
    """A pronounceable word that is most likely new, built from syllables or from halves of two train words.

    Policies warm-started on a few hundred real words learn those words; on pseudo-words they learn to copy.
    """
    if rng.random() < 0.5:
        first, second = rng.choice(TRAIN_WORDS), rng.choice(TRAIN_WORDS)
        return first[: rng.randint(2, max(2, len(first) - 2))] + second[-rng.randint(2, max(2, len(second) - 2)) :]
    syllables = rng.randint(1, 3)
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
