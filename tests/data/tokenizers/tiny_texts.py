"""Texts of two languages that are enough to train tiny vocabularies."""

ENGLISH = [
    "the small dog runs",
    "a dog sees the small house",
    "the house is old",
    "an old dog sleeps in the house",
]
GERMAN = [
    "der kleine Hund",
    "ein Hund sieht das kleine Haus",
    "das Haus ist alt",
    "ein alter Hund schläft im Haus",
]
