"""Making models: documents -> token ids -> n-gram models, and blockwise language models.

``corpus`` reads documents and encodes them; ``ngram.estimate`` counts, estimates (``katz``) and prunes (``pruning``)
an n-gram model as an ``fst.NgramTable``; ``blockwise.train_blockwise`` trains a transformer and its block heads.
``distill.distill`` lets a model write the text that ``heads.train_heads`` teaches new heads with.
Each is also a command: ``latticebpd train tokenizer | encode | blockwise | heads``, ``latticebpd distill`` and
``latticebpd lm train``.
"""
