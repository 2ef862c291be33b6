"""The four special tokens, which every vocabulary has under the same ids."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
SPECIAL = len(SPECIAL_PIECES)
