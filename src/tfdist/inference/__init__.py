"""Ask an exported model about pictures, wherever they come from: `answer(exported, source, ...)`."""

from tfdist.inference.answering import Summary, answer

__all__ = ["Summary", "answer"]
