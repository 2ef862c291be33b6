"""Programs that decode with other toolkits. Each is run by another environment's Python and imports nothing of ours.

`certificate.ask` starts `PYTHON -I scripts/interop/runtimes/NAME.py`, writes one JSON object to its standard input, and
reads one JSON object from its standard output. Log lines go to standard error. Exit code 0 means success; after
another one, the last line of standard error is the reason that the user reads. With -I the program's folder, where
ctranslate2.py is not the toolkit, is not on Python's path. An ImportError says that the toolkit is missing.

The request:
    folder           the file or folder of the model, an absolute path
    sources          texts to translate, without line breaks; a language token such as ">>fra<<" may begin a text
    references       for each source a target to score, {"text": TEXT, "pieces": [PIECE, ...]}, without end-of-sentence;
                     null: score nothing. A toolkit that takes tokens scores the pieces, any other one the text
    beam_size        hypotheses of the beam search
    length_penalty   alpha: the search compares log-probability / length^alpha, where length counts end-of-sentence
    max_length       tokens that a translation may have before end-of-sentence, at most
    quantization     the value of --quantization; null: none

The answer:
    precision        optional: "int8", for example, if the toolkit computes in something else than the request says
    versions         version of each package that computes, by name
    greedy           for each source the translation of a greedy search, detokenized text
    beam             the same for the beam search, the best hypothesis
    scores           for each reference the log-probability of its tokens and end-of-sentence, a sum in nats; null if
                     the toolkit does not score, or the request has no references

A search never generates padding or the unknown token.
"""
