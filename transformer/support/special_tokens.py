"""The four special tokens, which every vocabulary has under the same ids."""

# Padding, unknown, beginning and end of a sentence.
PAD = 0
UNK = 1
BOS = 2
EOS = 3
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
SPECIAL = len(SPECIAL_PIECES)

# The mark of SentencePiece for the space before a word.
WORD_START = "\u2581"
