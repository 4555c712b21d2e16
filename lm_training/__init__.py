"""Making models: documents -> token ids -> n-gram models, and blockwise language models.

``corpus`` reads documents and encodes them; ``building.build`` makes an n-gram model file of any input in stages, and
``ngram.estimate`` one as an ``fst.NgramTable`` in memory; ``blockwise.train_blockwise`` trains a transformer and its
block heads. ``distill.distill`` lets a model write the text that ``heads.train_heads`` teaches new heads with.
Each is also a command: ``latticebpd train tokenizer | encode | blockwise | heads``, ``latticebpd distill`` and
``latticebpd lm train``.
"""
