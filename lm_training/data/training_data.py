"""Training data by the name of a file or directory: texts, with stored hidden states if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from latticebpd.lattices.texts import Texts
from latticebpd.models.load_target import Name, file_fingerprints
from latticebpd.models.weight_kinds import INT8
from lm_training.data.hidden_states import HiddenStates, load_states
from lm_training.data.sequences import load_texts


@dataclass(frozen=True, eq=False)
class HeadData:
    """Texts to learn or to measure, and the hidden states that they were written from; None: the model reads them."""

    texts: Texts
    states: HiddenStates | None = None

    @classmethod
    def of(cls, data: HeadData | Texts) -> HeadData:
        return data if isinstance(data, HeadData) else cls(data)

    def require_model(self, fingerprint: str, whose: str, name: Name | None = None) -> None:
        """ValueError for states of another model than the one of this hash, ``whose`` in words.

        name: by which it was loaded; the CPU engine knows it by hashes of its files.
        """
        if self.states is None:
            return
        made_by = self.states.model.removesuffix(f" as {INT8}")
        if made_by != fingerprint and (name is None or made_by not in file_fingerprints(name)):
            got = f"expected hidden states of {whose} ({fingerprint}), got some of another model ({self.states.model})"
            raise ValueError(f"{got}; make them with this one, in the type in which it is loaded")


def load_head_data(
    paths: Sequence[Path], validation: Sequence[Path], window: int, with_states: bool = True
) -> tuple[HeadData, HeadData]:
    """Training and validation data; with hidden states if all files and directories have some."""
    texts = {path: load_texts(path, window) for path in (*paths, *validation)}
    states = {path: load_states(path, each) if with_states else None for path, each in texts.items()}
    kept = {path: each for path, each in states.items() if each is not None}

    def joined(chosen: Sequence[Path]) -> HeadData:
        together = HiddenStates.joined([kept[path] for path in chosen]) if len(kept) == len(texts) else None
        return HeadData(Texts.joined([texts[path] for path in chosen]), together)

    return joined(paths), joined(validation)
