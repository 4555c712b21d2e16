"""Training, each step also a command: ``latticebpd train``, ``latticebpd distill`` and ``latticebpd lm train``.

``data`` reads documents, encodes them and writes text by a model; ``ngram`` estimates n-gram models;
``families`` trains heads, drafters, rescorers and translation models with the loop of ``training``.
"""
